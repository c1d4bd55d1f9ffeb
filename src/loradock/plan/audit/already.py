"""What a plan does well already, and what it left aside with a reason: lines for the audit."""

from __future__ import annotations

from collections.abc import Callable

from loradock.catalog import optimizers
from loradock.plan.context import Context
from loradock.plan.plan import Plan

Line = Callable[[Context], str | None]

REASONED = ("attention", "compile", "cuda_graphs")
"""Decisions whose reason says why a well-known remedy was not taken."""
LEFT_VALUES = ("sdpa", "eager", "off", False)


def good(baseline: Context) -> list[str]:
    """What is as it should be."""
    return [text for line in LINES if (text := line(baseline)) is not None]


def reasoned(plan: Plan) -> list[tuple[str, str]]:
    """(what, why) of well-known remedies that the plan decided against by itself."""
    decisions = [decision for decision in plan.decisions if decision.name in REASONED and decision.value in LEFT_VALUES]
    return [
        (f"{decision.name} is {_shown(decision.value)}", decision.why)
        for decision in decisions
        if decision.why != "set in the configuration"
    ]


def _half_precision(baseline: Context) -> str | None:
    dtype = baseline.plan.compute_dtype.value
    if dtype == "bfloat16":
        return "matrix multiplications in bfloat16: float32's range, so no loss scaling"
    return (
        "matrix multiplications in float16, with loss scaling: the GPU has no bfloat16" if dtype == "float16" else None
    )


def _four_bits(baseline: Context) -> str | None:
    model = baseline.config.model
    scales = ", their scales quantised too" if model.double_quant else ""
    return f"base weights in NF4, a quarter of their 16-bit size{scales}" if model.storage.scales else None


def _checkpointing(baseline: Context) -> str | None:
    count, layers = baseline.plan.checkpointed_layers.value, baseline.plan.model.layers
    if not count:
        return "no layer is recomputed: all activations fit"
    return f"only {count} of {layers} layers are recomputed" if count < layers else None


def _packing(baseline: Context) -> str | None:
    return "documents end to end: no padding is computed" if baseline.plan.packing.value else None


def _optimizer(baseline: Context) -> str | None:
    known = optimizers.named(baseline.plan.optimizer.value)
    return f"{known.title} over float32 adapters" if known is optimizers.DEFAULT else None


def _cache(baseline: Context) -> str | None:
    count, layers = baseline.plan.cached_layers.value, baseline.plan.model.layers
    return f"{count} of {layers} layers keep dense weights: nothing is dequantised for them" if count else None


def _loader(baseline: Context) -> str | None:
    loader = baseline.plan.dataloader.value
    pinned = ", into pinned memory" if loader.pin_memory else ""
    by = f"{loader.workers} workers" if loader.workers else "the training process"
    return f"rows are tokenised once, before training, and loaded by {by}{pinned}"


def _tf32(baseline: Context) -> str | None:
    return "TF32 for what is left in float32" if baseline.plan.tf32.value else None


def _processes(baseline: Context) -> str | None:
    count = baseline.facts.world_size
    return f"{count} ranks share each step" if count > 1 else None


LINES: tuple[Line, ...] = (
    _half_precision,
    _four_bits,
    _checkpointing,
    _packing,
    _optimizer,
    _cache,
    _loader,
    _tf32,
    _processes,
)


def _shown(value: object) -> str:
    return "off" if value is False else str(value)
