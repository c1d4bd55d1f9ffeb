"""Data loader workers, pinned memory, persistence and prefetching, for the data set's size and the machine."""

from loradock.plan import memory
from loradock.plan.context import Decision, Question

SMALL_ROWS = 2_000


def decide(question: Question) -> Decision:
    """No workers for small data; rows are tokenised ahead, so a worker only gathers and pads."""
    asked = question.config.train.workers
    most = memory.loader_workers(question.facts)
    if asked != "auto":
        workers, why = asked, "asked for"
    elif question.data.train_rows < SMALL_ROWS:
        workers, why = 0, f"{question.data.train_rows} rows: starting a worker costs more than it saves"
    elif not question.on_gpu:
        workers, why = 0, "on a CPU a worker would take the cores that train"
    elif most < 1:
        workers, why = 0, f"no core to spare: {question.facts.cpus} for {question.facts.processes_here} process(es)"
    else:
        workers = most
        why = f"rows are tokenised ahead, {workers} of {question.facts.cpus} CPUs keep up"
    value = {
        "workers": workers,
        "pin_memory": question.on_gpu,
        "persistent_workers": workers > 0,
        "prefetch_factor": memory.LOADER_PREFETCH if workers else None,
    }
    return Decision(name="dataloader", value=value, why=why)
