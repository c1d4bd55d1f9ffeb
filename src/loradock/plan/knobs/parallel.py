"""How several processes share the work: DDP where the model fits one GPU, FSDP only where it does not.

The number of parameters decides nothing; the memory that one row needs, against the GPU's, does.
"""

from __future__ import annotations

from dataclasses import replace

from loradock.catalog import engines, optimizers
from loradock.config.schema import RunConfig
from loradock.errors import ConfigError, EnvironmentUnfit, OutOfMemory
from loradock.plan.context import Context, asked
from loradock.plan.memory import sharded
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


def smallest_bytes(context: Context, *, mode: str, cpu_offload: bool) -> dict[str, int]:
    """Bytes by component of the least that a process needs when they share the model by `mode`.

    One row, all layers recomputed, where nothing else was asked for. What is decided later is taken as it
    would be.
    """
    train = context.config.train
    choice = [engine for engine in engines.serving(mode) if context.config.engine in ("auto", engine.name)]
    engine = next((engine for engine in choice if not context.obstacle(engine.cannot)), engines.serving(mode)[-1])
    guess = {
        "parallel": mode,
        "cpu_offload": cpu_offload,
        "engine": engine.name,
        "packing": engine.always_packs if train.packing == "auto" else train.packing,
        "attention": "flash_attention_2" if context.on_gpu and "flash-attn" in context.facts.packages else "sdpa",
    }
    smallest = replace(context, plan=context.plan.supposing(**guess))
    is_paged = context.on_gpu and optimizers.SMALLEST.name in engine.optimizers and train.optimizer == "auto"
    return smallest.expected_bytes(
        micro_batch=1 if train.micro_batch == "auto" else train.micro_batch,
        checkpointing=True if train.checkpointing == "auto" else context.asked_layers(train.checkpointing),
        optimizer=optimizers.SMALLEST.name if is_paged else optimizers.named(train.optimizer).name,
    )


def host_bytes(context: Context, *, mode: str) -> int:
    """Host memory of a process whose part of the model lives there."""
    supposed = replace(context, plan=context.plan.supposing(attention="sdpa"))
    setting = supposed.sharded_setting(True, optimizer=optimizers.DEFAULT.name)
    sharing = sharded.Sharing(mode=mode, processes=context.facts.world_size, cpu_offload=True)
    return sharded.host_bytes(context.model, setting=setting, sharing=sharing)


def _decide_by_memory(context: Context) -> Decision[str]:
    engine, have = context.config.engine, context.memory_bytes
    need = smallest_bytes(context, mode="ddp", cpu_offload=False)["total"]
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
