"""How many samples (packed: how many times max_length tokens, the token budget) go through the device at once."""

from __future__ import annotations

from dataclasses import replace

from loradock.catalog import optimizers
from loradock.catalog.engines import SHARDING
from loradock.errors import OutOfMemory
from loradock.plan.context import Context, asked
from loradock.plan.memory.base import planned_weights
from loradock.plan.plan import Decision
from loradock.plan.trial import Trial

TOO_SMALL = "the micro-batch is too small: too many passes, each with a fixed cost"
TOO_LARGE = "the micro-batch is too large for the memory: little is left for anything else"
PADDED = "the micro-batch is large: more rows are padded to its longest"


def decide(context: Context) -> Decision[int]:
    """The most that fits in memory and still is of use; OutOfMemory where not even one row fits on a GPU."""
    setting = context.config.train.micro_batch
    if setting != "auto":
        return asked("micro_batch", setting)
    return _decide_fast(context) if context.engine.plans_shapes else _decide_peft(context)


def need(context: Context, rows: int) -> dict[str, int]:
    """Expected bytes by component for a micro-batch of `rows`."""
    return context.expected_bytes(
        micro_batch=rows, checkpointing=context.plan.checkpointing.value, optimizer=context.plan.optimizer.value
    )


def too_large(context: Context, expected: dict[str, int]) -> OutOfMemory:
    """The error for a model of which not even one row fits; shorter rows are a remedy only where the weights fit."""
    length = context.row_tokens
    needed, have = expected["total"] / 2**30, limit_bytes(context) / 2**30
    device = context.facts.gpu.name if context.on_gpu else "this machine"
    gpu = f"{device} has {have:.1f} GiB available"
    weights = planned_weights(expected) / 2**30
    if weights > have:
        return OutOfMemory(
            f"the base weights need about {weights:.1f} GiB, {gpu}",
            hint=f"a smaller --model, or {room(context)}",
        )
    if not context.on_gpu:
        remedy = f"--set data.max_length={max(64, length // 2)}, a smaller lora.rank, or a smaller model"
        return OutOfMemory(f"one row of {length} tokens needs about {needed:.1f} GiB, {gpu}", hint=remedy)
    is_whole = context.facts.world_size > 1 and not context.mode.cuts_state
    if context.mode.cuts_weights and not context.plan.cpu_offload.value:
        remedy = "--set train.cpu_offload=true"
    elif is_whole and not context.obstacle(SHARDING.cannot):
        remedy = f"--set train.parallel={SHARDING.name} --set engine=auto"
    elif not context.plan.checkpointing.value:
        remedy = "--set train.checkpointing=true"
    elif context.config.model.cache_weights not in ("auto", 0):
        remedy = "--set model.cache_weights=auto"
    elif fits_paged(context):
        remedy = f"--set engine={context.engine.fallback}, whose optimiser state can be paged to host memory"
    else:
        remedy = f"--set data.max_length={max(64, length // 2)}, a smaller model, or {room(context)}"
    return OutOfMemory(f"one row of {length} tokens needs about {needed:.1f} GiB, {gpu}", hint=remedy)


def limit_bytes(context: Context) -> int:
    """What is refused beyond: on a CPU all memory of the machine; too high an estimate must not refuse there."""
    if context.on_gpu:
        return context.memory_bytes
    return context.facts.memory_bytes // context.facts.processes_here


def room(context: Context) -> str:
    """Where there is more memory: several GPUs can share a model, one alone cannot."""
    return "a larger GPU" if context.facts.world_size > 1 else "several GPUs (--gpus, loradock launch), or a larger GPU"


def fits_paged(context: Context) -> bool:
    """Whether one row fits with the engine's fallback, all layers checkpointed and the optimiser's state paged."""
    if context.engine.fallback is None:
        return False
    fallback = replace(context, plan=context.plan.supposing(engine=context.engine.fallback))
    paged = fallback.expected_bytes(micro_batch=1, checkpointing=True, optimizer=optimizers.SMALLEST.name)
    return paged["total"] <= context.memory_bytes


def _decide_peft(context: Context) -> Decision[int]:
    """The largest power of two that fits in memory, useful up to a token count where the device is busy."""
    length = context.row_tokens
    rows = 1 << (context.useful_rows.bit_length() - 1)
    while rows > context.least_rows and need(context, rows)["total"] > context.memory_bytes:
        rows //= 2
    expected = need(context, rows)
    if expected["total"] > limit_bytes(context):
        raise too_large(context, expected)
    sizes = f"{expected['total'] / 2**30:.1f} of {context.memory_bytes / 2**30:.1f} GiB"
    return Decision(name="micro_batch", value=rows, why=f"{rows} x {length} tokens need about {sizes}")


def _decide_fast(context: Context) -> Decision[int]:
    """The budget of the fastest shape that fits."""
    choice = context.fast_choice()
    if choice is None:
        setting = context.config.train.checkpointing
        layers = context.model.layers if setting == "auto" else context.asked_layers(setting)
        cached = context.limits.cached or 0
        expected = context.expected_bytes(
            micro_batch=context.least_rows,
            checkpointing=layers,
            optimizer=optimizers.DEFAULT.name,
            cached_layers=cached,
        )
        if expected["total"] > limit_bytes(context):
            raise too_large(context, expected)
    length, most = context.row_tokens, context.useful_rows
    if choice is None:
        tokens = context.least_rows * length
        return Decision(
            name="micro_batch", value=context.least_rows, why=f"not even {tokens} tokens fit by the estimate"
        )
    sizes = f"{choice.needed_bytes / 2**30:.1f} of {context.memory_bytes / 2**30:.1f} GiB"
    tokens = choice.shape.tokens
    why = f"{tokens:,} tokens a pass need about {sizes}; the fastest that fits, of 1 to {most} x {length}"
    return Decision(name="micro_batch", value=choice.rows, why=why)


def propose(context: Context) -> tuple[Trial, ...]:
    """Larger only where a step takes several passes: else there is nothing left to put into one."""
    config, plan = context.config, context.plan
    current = plan.micro_batch.value
    larger = min(2 * current, config.step_samples)
    trials: list[Trial] = []
    if config.train.micro_batch != "auto":
        trials.append(_as_planned(context))
    if plan.accumulation.value > 1 and larger > current:
        trials.append(_trial(context, "micro-batch-x2", larger))
    if current > context.least_rows:
        trials.append(_trial(context, "micro-batch-x0.5", max(context.least_rows, current // 2)))
    return tuple(trials)


def _trial(context: Context, name: str, size: int) -> Trial:
    current = context.plan.micro_batch.value
    smaller = TOO_LARGE if context.plan.packing.value else PADDED
    return Trial(
        name=name,
        title=f"micro-batch {size} instead of {current}",
        settings=(f"train.micro_batch={size}",),
        cause=TOO_SMALL if size > current else smaller,
        phase="passes",
        stability_risk="low" if size > current else "none",
    )


def _as_planned(context: Context) -> Trial:
    free = context.config.model_copy(update={"train": context.config.train.model_copy(update={"micro_batch": "auto"})})
    current = context.plan.micro_batch.value
    try:
        is_larger = decide(replace(context, config=free)).value > current
    except OutOfMemory:
        is_larger = False
    return Trial(
        name="micro-batch-auto",
        title=f"the micro-batch as planned instead of {current}",
        settings=("train.micro_batch=auto",),
        cause=TOO_SMALL if is_larger else TOO_LARGE if context.plan.packing.value else PADDED,
        phase="passes",
    )
