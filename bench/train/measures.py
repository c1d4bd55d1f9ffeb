"""From the lines of a results file to figures: what each arm reached, over its repeats."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bench.train.lines import FAILED

REFERENCE = "trl-vanilla"
PEERS = ("trl-", "unsloth")
Group = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A figure over repeats."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Span | None:
        """Smallest, median and largest of those that are known; None where none is."""
        known = sorted(value for value in values if value is not None)
        return cls(low=known[0], middle=statistics.median(known), high=known[-1]) if known else None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One slice. Tokens and samples a second are those of the steps after the warm-up, everything included.

    Step times in seconds; `flops` are the operations that LoRA needs (`arithmetic`), a second.
    """

    tokens_per_second: float
    supervised_per_second: float
    samples_per_second: float
    flops: float
    median_step: float
    slow_step: float
    first_step_seconds: float
    peak_bytes: int
    steps: int


def measured(line: dict[str, Any], *, warmup_steps: int) -> Measured | None:
    """The figures of a slice; None where it made no step after the warm-up."""
    steps = line["steps"]
    seconds = steps["seconds"]
    if line["status"] == FAILED or len(seconds) <= warmup_steps or not warmup_steps:
        return None
    taken = seconds[-1] - seconds[warmup_steps - 1]
    each = sorted(
        after - before for before, after in zip(seconds[warmup_steps - 1 :], seconds[warmup_steps:], strict=False)
    )
    tokens = sum(steps["tokens"][warmup_steps:])
    summary = line["summary"]
    return Measured(
        tokens_per_second=tokens / taken,
        supervised_per_second=sum(steps["supervised_tokens"][warmup_steps:]) / taken,
        samples_per_second=sum(steps["samples"][warmup_steps:]) / taken,
        flops=tokens / taken * line["operations_per_token"],
        median_step=statistics.median(each),
        slow_step=each[int(0.95 * len(each))],
        first_step_seconds=seconds[0],
        peak_bytes=summary.get("peak_reserved_bytes") or summary.get("peak_rss_bytes") or 0,
        steps=len(each),
    )


def groups(lines: list[dict[str, Any]]) -> dict[Group, dict[str, list[dict[str, Any]]]]:
    """Slices by (model, rows, shape), then by arm, in the order of the file; of a slice run twice, the later one."""
    found: dict[Group, dict[str, dict[int, dict[str, Any]]]] = {}
    for line in lines:
        if line["kind"] == "slice":
            shape = ", ".join(f"{name} {value}" for name, value in line["shape"].items())
            arms = found.setdefault((line["model"], line["rows"], shape), {})
            arms.setdefault(line["arm"], {})[line["repeat"]] = line
    return {group: {arm: list(by.values()) for arm, by in arms.items()} for group, arms in found.items()}


def ceiling(lines: list[dict[str, Any]]) -> float | None:
    """The median ceiling of products, in FLOP/s; None where it was not measured."""
    span = Span.of(line["rates"]["ceiling_flops"] for line in lines if line["kind"] == "floor")
    return span.middle if span else None


def loss_difference(line: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """The largest difference in loss, over the steps that both made on the same samples; None where there are none."""
    mine, theirs = line["steps"], reference["steps"]
    pairs = [
        abs(a - b)
        for a, b, n, m in zip(mine["loss"], theirs["loss"], mine["tokens"], theirs["tokens"], strict=False)
        if n == m
    ]
    return max(pairs) if len(pairs) == min(len(mine["loss"]), len(theirs["loss"])) and pairs else None


def best_peer(speeds: dict[str, Span]) -> float | None:
    """Tokens a second of the fastest peer (by its median)."""
    return max((span.middle for arm, span in speeds.items() if arm.startswith(PEERS)), default=None)
