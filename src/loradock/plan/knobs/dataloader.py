"""Data loader workers, pinned memory, persistence and prefetching, for the data set's size and the machine."""

from loradock.plan import memory
from loradock.plan.context import Context
from loradock.plan.plan import DataLoader, Decision, Plan
from loradock.plan.trial import CLAIMED, Stated, Trial

SMALL_ROWS = 2_000
FEWEST = 2
GAIN = Stated(
    low=1.0,
    high=1.2,
    source=f"{CLAIMED}: 10 to 20 % if the CPU is behind; another guide found 0.99x with 8 workers",
)


def decide(context: Context) -> Decision[DataLoader]:
    """No workers for small data; rows are tokenised ahead, so a worker only gathers and pads."""
    setting = context.config.train.workers
    most = memory.loader_workers(context.facts)
    if setting != "auto":
        workers, why = setting, "set in the configuration"
    elif context.data.train_rows < SMALL_ROWS:
        workers, why = 0, f"{context.data.train_rows} rows: starting a worker costs more than it saves"
    elif not context.on_gpu:
        workers, why = 0, "on a CPU a worker would take the cores that train"
    elif most < 1:
        workers, why = 0, f"no free CPU: {context.facts.cpus} for {context.facts.processes_here} process(es)"
    else:
        workers = most
        why = f"rows are tokenised ahead, {workers} of {context.facts.cpus} CPUs keep up"
    value = DataLoader(
        workers=workers,
        pin_memory=context.on_gpu,
        persistent_workers=workers > 0,
        prefetch_factor=memory.LOADER_PREFETCH if workers else None,
    )
    return Decision(name="dataloader", value=value, why=why)


def propose(context: Context) -> tuple[Trial, ...]:
    """None where there are some; twice as many, at least two, where the machine has the cores."""
    facts, current = context.facts, context.plan.dataloader.value.workers
    more = min(max(FEWEST, 2 * current), facts.cpus // facts.processes_here)
    trials = (
        [_trial("data-workers-more", current, more, cause="the loader is too slow for the steps")]
        if more > current
        else []
    )
    if current:
        trials.append(_trial("data-workers-0", current, 0, cause="passing data from data loader processes"))
    return tuple(trials)


def _trial(name: str, current: int, workers: int, *, cause: str) -> Trial:
    return Trial(
        name=name,
        title=f"{workers} data workers instead of {current}",
        settings=(f"train.workers={workers}",),
        cause=cause,
        phase="data",
    )


def gains(baseline: Plan, changed: Plan) -> bool:
    """More worker processes."""
    return changed.dataloader.value.workers > baseline.dataloader.value.workers
