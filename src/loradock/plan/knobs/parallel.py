"""How several processes share the work: DDP where the model fits one card, FSDP only where it does not.

Two decisions: `parallel` (none, ddp, fsdp, zero2 or zero3), and `cpu_offload`, the last resort: every pass then waits
for host memory. A model's size in parameters decides nothing; what it needs beside the card's memory does.
"""

from __future__ import annotations

from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.plan import obstacles
from loradock.plan.context import (
    SHARDED,
    Decision,
    Question,
    asked,
)

NAME, OFFLOAD = "parallel", "cpu_offload"
ENGINES = {"ddp": ("fast", "trl"), "fsdp": ("sharded",), "zero2": ("trl",), "zero3": ("trl",)}
"""The engines that share in this way."""


def decide(question: Question) -> Decision:
    """ddp wherever the model fits one card. Raises EnvironmentUnfit or ConfigError for a mode that cannot be."""
    wanted, engine, processes = question.config.train.parallel, question.config.engine, question.facts.world_size
    if processes == 1:
        check_processes(question.config, processes)
        return Decision(name=NAME, value="none", why="one process")
    if wanted == "auto" and engine == "sharded":
        wanted = "fsdp"
    if wanted == "auto":
        return _decide_by_memory(question)
    if engine != "auto" and engine not in ENGINES[wanted]:
        raise ConfigError(
            f"train.parallel is {wanted}, and engine {engine} does not share in this way", hint="--set engine=auto"
        )
    if obstacle := {"fsdp": _sharding_obstacle(question), "zero3": obstacles.of_parts(question.config)}.get(wanted):
        raise ConfigError(f"train.parallel {wanted} cannot be used: {obstacle}", hint="--set train.parallel=auto")
    return asked(NAME, wanted)


def asks_for_several(config: RunConfig) -> str | None:
    """What of a configuration shares a model among several processes; None where nothing does."""
    if config.train.parallel != "auto":
        return f"train.parallel {config.train.parallel}"
    return "engine sharded" if config.engine == "sharded" else None


def check_processes(config: RunConfig, processes: int) -> None:
    """Raise EnvironmentUnfit where one process is to share a model."""
    asked_for = asks_for_several(config)
    if asked_for and processes == 1:
        raise EnvironmentUnfit(
            f"{asked_for} shares a model among several processes, and there is one",
            hint="loradock launch --nproc N train ..., or --set train.parallel=auto --set engine=auto",
        )


def decide_cpu_offload(question: Question) -> Decision:
    """Only where nothing else fits. Raises OutOfMemory where that does not help either."""
    wanted, mode = question.config.train.cpu_offload, question.decided[NAME]
    obstacle = _offload_obstacle(question)
    if wanted is True and obstacle:
        raise ConfigError(f"train.cpu_offload cannot be used: {obstacle}", hint="--set train.cpu_offload=auto")
    if wanted != "auto":
        return asked(OFFLOAD, wanted)
    if obstacle:
        return Decision(name=OFFLOAD, value=False, why=obstacle)
    have = question.memory_bytes
    need, with_it = (_need(question, mode=mode, cpu_offload=offloads) for offloads in (False, True))
    if need <= have:
        return Decision(name=OFFLOAD, value=False, why=f"one row needs about {_of(need, have)} on each card")
    if with_it > have:
        raise OutOfMemory(
            f"one row needs about {_of(need, have)} on each of {question.facts.world_size} cards that share the model, "
            f"and {with_it / 2**30:.1f} GiB with its weights in host memory",
            hint=f"--set data.max_length={max(64, question.data.limit_tokens // 2)}, more or larger cards",
        )
    host = question.host_bytes(mode=mode) / 2**30
    why = (
        f"one row needs about {_of(need, have)} without it; with it {with_it / 2**30:.1f} GiB, and {host:.1f} GiB of "
        f"host memory a process"
    )
    return Decision(name=OFFLOAD, value=True, why=why)


def _decide_by_memory(question: Question) -> Decision:
    engine, have = question.config.engine, question.memory_bytes
    need = _need(question, mode="ddp", cpu_offload=False)
    size = f"{question.model.parameters / 1e9:.1f}B weights, about {_of(need, have)} for one row on one card"
    if engine != "auto":
        return Decision(name=NAME, value="ddp", why=f"engine {engine} was asked for, which shares by it; {size}")
    if not question.on_gpu:
        return Decision(name=NAME, value="ddp", why=f"on a CPU each process has the whole model; {size}")
    if need <= have:
        why = f"it fits: {size}; only the adapters' gradients are exchanged"
        return Decision(name=NAME, value="ddp", why=why)
    if obstacle := _sharding_obstacle(question):
        raise OutOfMemory(
            f"the model does not fit: {size}; and it cannot be sharded: {obstacle}",
            hint="a larger card, or settings that the sharded engine takes",
        )
    return Decision(name=NAME, value="fsdp", why=f"it does not fit: {size}")


def _sharding_obstacle(question: Question) -> str | None:
    return obstacles.of_sharded(question.config, compute_dtype=question.decided["compute_dtype"])


def _offload_obstacle(question: Question) -> str | None:
    mode = question.decided[NAME]
    if mode not in SHARDED:
        return "each card has the whole model" if mode == "ddp" else "one process: nothing is shared"
    return None if question.on_gpu else "there is no card to take weights off"


def _need(question: Question, *, mode: str, cpu_offload: bool) -> int:
    return question.smallest_bytes(mode=mode, cpu_offload=cpu_offload)["total"]


def _of(need: int, have: int) -> str:
    return f"{need / 2**30:.1f} of {have / 2**30:.1f} GiB"
