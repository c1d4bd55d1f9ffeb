"""The shape of the fast engine's micro-batches: token budget, checkpointed and cached layers, the fastest that fits.

Every budget up to the largest useful one is tried. For each, as few layers are checkpointed as fit, and then as many
keep dense weights as still fit: a byte saves 1.7 to 46 times more where it saves a layer's second forward than where it
saves dequantisation (by GPU and model), whatever the budget. Of all that fit the fastest is taken by the model in
`speed`, the smaller one where two are equal.

The last layer is checkpointed only where nothing else fits: its backward comes at once, so it keeps little in vain.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loradock.plan.memory.fast import FastMemory, Shape
from loradock.plan.throughput import Rates, Rows, fast_seconds


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a choice keeps to: bytes in all, bytes for dense weights, and what was asked for (None: free)."""

    memory_bytes: int
    cache_bytes: int
    checkpointed: int | None = None
    cached: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was found: rows of the budget, its shape, the bytes it needs, and seconds of an optimiser step."""

    rows: int
    shape: Shape
    needed_bytes: int
    step_seconds: float


def choose(
    memory: FastMemory,
    *,
    rows: Iterable[int],
    row_tokens: int,
    step_tokens: float,
    limits: Limits,
    data: Rows,
    rates: Rates,
) -> Choice | None:
    """The fastest shape of those whose budget is one of `rows` times `row_tokens`; None where none fits.

    `step_tokens` are those that one process sees in an optimiser step.
    """
    shapes: list[Choice] = []
    for count in rows:
        shape = fitted(memory, tokens=count * row_tokens, limits=limits)
        if shape is None:
            continue
        seconds = step_seconds(memory, shape, step_tokens=step_tokens, data=data, rates=rates)
        shapes.append(Choice(rows=count, shape=shape, needed_bytes=memory.total(shape), step_seconds=seconds))
    return min(shapes, key=lambda shape: (shape.step_seconds, shape.rows), default=None)


def step_seconds(memory: FastMemory, shape: Shape, *, step_tokens: float, data: Rows, rates: Rates) -> float:
    """Seconds that one process is expected to take for a mean optimiser step of `step_tokens` in passes of this shape.

    The passes are those of a full step, which is why a larger budget has to save a whole one.
    """
    passes = max(1, math.ceil(step_tokens * data.fullest / shape.tokens))
    parts = fast_seconds(memory.widths, shape, memory.setting, tokens=step_tokens / passes, rows=data, rates=rates)
    return passes * sum(parts.values())


def fitted(memory: FastMemory, *, tokens: int, limits: Limits) -> Shape | None:
    """The fewest checkpointed and then the most cached layers with which this budget fits; None where none do."""
    layers = memory.widths.layers
    cached = limits.cached or 0
    counts = range(layers + 1) if limits.checkpointed is None else (limits.checkpointed,)

    def has_room(checkpointed: int) -> bool:
        return memory.total(Shape(tokens=tokens, checkpointed=checkpointed, cached=cached)) <= limits.memory_bytes

    count = counts[min(bisect.bisect_left(counts[:-1], True, key=has_room), len(counts) - 1)]
    if not has_room(count):
        return None
    shape = Shape(tokens=tokens, checkpointed=count, cached=cached)
    if limits.cached is not None or not memory.dense_layer:
        return shape
    free = min(limits.memory_bytes - memory.total(shape), limits.cache_bytes)
    return replace(shape, cached=min(layers, free // memory.dense_layer))
