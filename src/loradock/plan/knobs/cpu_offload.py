"""Whether a shared model's weights live in host memory: the last resort, for every pass then waits for them."""

from __future__ import annotations

from loradock.errors import ConfigError, OutOfMemory
from loradock.plan.context import Context, asked
from loradock.plan.knobs.parallel import host_bytes, smallest_bytes
from loradock.plan.memory.base import of_memory
from loradock.plan.plan import Decision

NAME = "cpu_offload"


def decide(context: Context) -> Decision[bool]:
    """Only where nothing else fits. Raises OutOfMemory where that does not help either."""
    setting, mode = context.config.train.cpu_offload, context.plan.parallel.value
    obstacle = _obstacle(context)
    if setting is True and obstacle:
        raise ConfigError(f"train.cpu_offload cannot be used: {obstacle}", hint="--set train.cpu_offload=auto")
    if setting != "auto":
        return asked(NAME, setting)
    if obstacle:
        return Decision(name=NAME, value=False, why=obstacle)
    have = context.memory_bytes
    need, with_it = (smallest_bytes(context, mode=mode, cpu_offload=offloads)["total"] for offloads in (False, True))
    if need <= have:
        return Decision(name=NAME, value=False, why=f"one row needs about {of_memory(need, have)} on each GPU")
    if with_it > have:
        raise OutOfMemory(
            f"one row needs about {of_memory(need, have)} on each of {context.facts.world_size} GPUs "
            f"that shard the model, and {with_it / 2**30:.1f} GiB with its weights in host memory",
            hint=f"--set data.max_length={max(64, context.data.limit_tokens // 2)}, more or larger GPUs",
        )
    host = host_bytes(context, mode=mode) / 2**30
    why = (
        f"one row needs about {of_memory(need, have)} without it; with it {with_it / 2**30:.1f} GiB, "
        f"and {host:.1f} GiB of host memory a process"
    )
    return Decision(name=NAME, value=True, why=why)


def _obstacle(context: Context) -> str | None:
    if not context.mode.cuts_state:
        return "each GPU has the whole model" if context.facts.world_size > 1 else "one process: nothing is sharded"
    return None if context.on_gpu else "there is no GPU to offload from"
