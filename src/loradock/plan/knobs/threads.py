"""CPU threads of this process. Fixed by the plan, so that a rerun adds up in the same order on any day."""

from loradock.plan.context import Context
from loradock.plan.plan import Decision

SMALL_HIDDEN = 512
GPU_THREADS = 4


def decide(context: Context) -> Decision[int]:
    """One for a tiny model on a CPU; its share of the cores for a larger one; a few where a GPU does the work."""
    setting = context.config.train.threads
    if setting != "auto":
        return Decision(name="threads", value=setting, why="set in the configuration")
    share = max(1, context.facts.cpus // context.facts.processes_here)
    if context.on_gpu:
        return Decision(
            name="threads", value=min(GPU_THREADS, share), why=f"the GPU does the work; {share} CPU(s) a process"
        )
    if context.model.hidden < SMALL_HIDDEN:
        why = "an operation of such a small model takes microseconds: a second thread would cost more"
        return Decision(name="threads", value=1, why=why)
    return Decision(
        name="threads", value=share, why=f"{context.facts.cpus} CPUs for {context.facts.processes_here} process(es)"
    )
