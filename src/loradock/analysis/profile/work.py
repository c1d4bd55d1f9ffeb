"""What an optimiser step has to do by the speed model: operations of products, and bytes moved. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from loradock.config.schema import RunConfig
from loradock.facts import Facts
from loradock.plan import throughput
from loradock.plan.memory.base import BYTES
from loradock.plan.plan import Plan
from loradock.plan.planner import context_of

ONE_OPERATION = throughput.Rates(flops=1.0, bytes=inf, dequantise_bytes=inf, kernel_seconds=0.0)
ONE_BYTE = throughput.Rates(flops=inf, bytes=1.0, dequantise_bytes=1.0, kernel_seconds=0.0)
"""Rates with which the model's seconds are counts."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Of one optimiser step of this process: `flops` of products and attention, `bytes` read or written besides.

    As good as the model (see `speed`): bytes are counted from the engine's code, not by the device's counters.
    """

    flops: float
    bytes: float


MOVED = ("traffic", "dropout", "scores", "head", "weights")
"""What the speed model counts by bytes, besides dequantisation."""


def of_step(plan: Plan, config: RunConfig, *, facts: Facts, tokens: float, padded_tokens: float, passes: float) -> Work:
    """The work of a step of these passes and real tokens, and of those with padding (the peft backend computes it)."""
    context = context_of(plan, config, facts=facts)
    dtype = plan.compute_dtype.value

    def counts(rates: throughput.Rates) -> dict[str, float]:
        memory = context.fast_memory
        if context.engine.plans_shapes:
            shape = context.shape
            return throughput.fast_seconds(
                memory.widths, shape, memory.setting, tokens=tokens / passes, rows=context.rows, rates=rates
            )
        return throughput.peft_seconds(
            memory.widths,
            padded_tokens=padded_tokens / passes,
            rows=context.rows,
            rates=rates,
            dtype=dtype if dtype in BYTES else "float32",
            has_dropout=config.lora.dropout > 0,
        )

    operations, moved = counts(ONE_OPERATION), counts(ONE_BYTE)
    dequantised = moved.get("dequantise", 0.0) if config.model.storage.is_dequantised else 0.0
    return Work(
        flops=passes
        * (operations["products"] + operations["attention"] * throughput.ATTENTION_SHARE + operations["head"]),
        bytes=passes * (dequantised + sum(moved.get(name, 0.0) for name in MOVED)),
    )
