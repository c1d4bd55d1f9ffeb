"""The steps of a repeat beside the first ones: equal to the last bit, or from which step on they part, and how far."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MEASURED = ("loss", "grad_norm")
"""What is compared of each line; an evaluation has no gradient."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`steps`: the last one compared, 0 where none was; `evaluations`: how many were.

    `parted`: the first step at which something differs, None where nothing does. `largest` is the largest relative
    difference and `at` its step. `differences`: the step and the relative difference of each line that is not equal.
    """

    steps: int
    evaluations: int
    parted: int | None
    largest: float
    at: int | None
    differences: tuple[tuple[int, float], ...] = ()

    @property
    def is_identical(self) -> bool:
        """Whether everything that was compared is equal to the last bit."""
        return self.parted is None and self.steps > 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        known = {name: value for name, value in asdict(self).items() if name != "differences"}
        return known | {"identical": self.is_identical}


@dataclass(frozen=True)
class Measured:
    """Lines of metrics.jsonl by kind (`train`, `eval`), and the steps that their run was continued from."""

    lines: Mapping[str, Sequence[Mapping[str, Any]]]
    resumed_at: Collection[int] = ()

    def intervals(self) -> dict[int, int | None]:
        """The first step that the loss of each training line is a mean from; None where a continuation hides it."""
        starts: dict[int, int | None] = {}
        before = 0
        for line in self.lines["train"]:
            step = line["step"]
            is_cut = any(before < resumed < step for resumed in self.resumed_at)
            starts[step] = None if is_cut else before + 1
            before = step
        return starts


def compared(first: Measured, second: Measured, *, steps: int) -> Comparison:
    """Lines of the same steps, up to one; a training loss, a mean since the line before, where both have the same."""
    last = evaluations = 0
    parted: int | None = None
    largest, at = 0.0, None
    differences: list[tuple[int, float]] = []
    starts, starts_again = first.intervals(), second.intervals()
    for kind, lines in first.lines.items():
        beside = {line["step"]: line for line in second.lines.get(kind, ())}
        for line in lines:
            step, line_beside = line["step"], beside.get(line["step"])
            if line_beside is None or step > steps:
                continue
            names = [name for name in MEASURED if name in line]
            if kind == "train":
                last = max(last, step)
                if starts[step] is None or starts[step] != starts_again[step]:
                    names.remove("loss")
            else:
                evaluations += 1
            difference = max(_difference(line[name], line_beside.get(name)) for name in names)
            if difference > 0:
                differences.append((step, difference))
                parted = step if parted is None else min(parted, step)
            if difference > largest:
                largest, at = difference, step
    return Comparison(
        steps=last, evaluations=evaluations, parted=parted, largest=largest, at=at, differences=tuple(differences)
    )


def _difference(was: float | None, now: float | None) -> float:
    """Relative; 0 for equal bits."""
    if was == now:
        return 0.0
    if was is None or now is None or not (math.isfinite(was) and math.isfinite(now)):
        return math.inf
    return abs(was - now) / max(abs(was), abs(now))
