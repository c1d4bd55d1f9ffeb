"""How several processes share the work: DDP where the model fits one GPU, FSDP only where it does not.

The number of parameters decides nothing; the memory that one row needs, against the GPU's, does.
"""

from __future__ import annotations

from loradock.catalog import engines
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.plan.context import Context, asked
from loradock.plan.memory.base import of_memory
from loradock.plan.plan import Decision

NAME = "parallel"
LEAST_BILLIONS = 0.1
"""Fewer weights than this are said in full."""


def decide(context: Context) -> Decision[str]:
    """ddp wherever the model fits one GPU. Raises EnvironmentUnfit or ConfigError for a mode that cannot be."""
    setting, engine, processes = context.config.train.parallel, context.config.engine, context.facts.world_size
    if processes == 1:
        check_processes(context.config, processes)
        return Decision(name=NAME, value="none", why="one process")
    if setting == "auto" and (sharding := _sharding_engine(context.config)):
        setting = sharding.modes[0].name
    if setting == "auto":
        return _decide_by_memory(context)
    if engine != "auto" and engines.of(engine) not in engines.serving(setting):
        raise ConfigError(
            f"train.parallel is {setting}, and engine {engine} does not support it", hint="--set engine=auto"
        )
    if obstacle := context.obstacle(engines.MODES[setting].cannot):
        raise ConfigError(f"train.parallel {setting} cannot be used: {obstacle}", hint="--set train.parallel=auto")
    return asked(NAME, setting)


def asks_for_several(config: RunConfig) -> str | None:
    """What of a configuration shares a model among several processes; None where nothing does."""
    if config.train.parallel != "auto":
        return f"train.parallel {config.train.parallel}"
    return f"engine {config.engine}" if _sharding_engine(config) else None


def check_processes(config: RunConfig, processes: int) -> None:
    """Raise EnvironmentUnfit where one process is to share a model."""
    asked_for = asks_for_several(config)
    if asked_for and processes == 1:
        raise EnvironmentUnfit(
            f"{asked_for} shards the model over several ranks, and there is one process",
            hint="loradock launch --nproc N train ..., or --set train.parallel=auto --set engine=auto",
        )


def _decide_by_memory(context: Context) -> Decision[str]:
    engine, have = context.config.engine, context.memory_bytes
    need = context.smallest_bytes(mode="ddp", cpu_offload=False)["total"]
    weights = context.model.parameters
    count = f"{weights / 1e9:.1f}B" if weights >= LEAST_BILLIONS * 1e9 else f"{weights:,}"
    size = f"{count} weights, about {of_memory(need, have)} for one row on one GPU"
    if engine != "auto":
        return Decision(name=NAME, value="ddp", why=f"engine {engine} was requested, which uses it; {size}")
    if not context.on_gpu:
        return Decision(name=NAME, value="ddp", why=f"on a CPU each process has the whole model; {size}")
    if need <= have:
        why = f"it fits: {size}; only the adapters' gradients are all-reduced"
        return Decision(name=NAME, value="ddp", why=why)
    if obstacle := context.obstacle(engines.SHARDING.cannot):
        raise OutOfMemory(
            f"the model does not fit: {size}; and it cannot be sharded: {obstacle}",
            hint="a larger GPU, or settings that the fsdp backend supports",
        )
    return Decision(name=NAME, value=engines.SHARDING.name, why=f"it does not fit: {size}")


def _sharding_engine(config: RunConfig) -> engines.Engine | None:
    """The engine that was asked for, where it needs several processes."""
    engine = engines.ENGINES.get(config.engine)
    return engine if engine and engine.is_sharding else None
