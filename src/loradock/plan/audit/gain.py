"""What a change is worth by prediction: a factor, or a range where no model can say, and where the figure is from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from loradock.plan.audit.prediction import (
    HOST,
    SAVING,
    Prediction,
    predicted,
    tokens_per_second,
)
from loradock.plan.trials.base import Baseline

MODEL = "speed model"
ARITHMETIC = "arithmetic: a forward pass is a third of a training pass"
VISIBLE = 1e-3
UNSEEN = "no figure of the model moves; `loradock diagnose` measures it"
CLAIMED = "claimed by others, not measured here"


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A range for a decision that the speed model knows nothing of, with its source."""

    low: float
    high: float
    source: str


STATED = {
    "dataloader": Stated(
        low=1.0,
        high=1.2,
        source=f"{CLAIMED}: 10 to 20 % if the CPU is behind; another guide's test found 0.99x with 8 workers",
    ),
    "compile": Stated(low=1.0, high=1.25, source=f"{CLAIMED}: 15 to 25 % (docs/gpu.md, question 22)"),
    "optimizer": Stated(
        low=1.0, high=1.1, source=f"{CLAIMED}: 5 to 10 % of a full fine-tuning's step; on adapters a test found 0.98x"
    ),
    "attention": Stated(low=1.0, high=1.4, source=f"{CLAIMED}: 30 to 40 %; SDPA has the same kernels inside"),
    "compute_dtype": Stated(low=1.5, high=8.0, source="published: tensor cores' peaks against float32 units'"),
}
"""By the name of the decision that differs."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Times as fast, between `low` and `high` (equal, where the model says), and what the figure goes by."""

    low: float
    high: float
    source: str

    @property
    def expected(self) -> float:
        """The middle of the range, as a factor."""
        return math.sqrt(self.low * self.high)

    @property
    def is_range(self) -> bool:
        """Whether it is stated, and not computed."""
        return self.high > self.low


def gain(before: Baseline, after: Baseline) -> Gain:
    """How many times the real tokens a second a change gives: what it leaves out of the data is no gain."""
    first, second = predicted(before), predicted(after)
    factor = tokens_per_second(after) / tokens_per_second(before)
    ranges = [STATED[name] for name in _differing(before, after) if _is_stated(name, before, after)]
    low, high = math.prod(each.low for each in ranges), math.prod(each.high for each in ranges)
    sources = [*_sources(first, second), *(each.source for each in ranges)]
    return Gain(low=factor * low, high=factor * high, source="; ".join(sources) or UNSEEN)


def _sources(first: Prediction, second: Prediction) -> list[str]:
    parts = {
        MODEL: (first.passes - first.host, second.passes - second.host),
        HOST: (first.host, second.host),
        ARITHMETIC: (first.evaluation / first.passes, second.evaluation / second.passes),
        SAVING: (first.saving, second.saving),
    }
    scale = {ARITHMETIC: 1.0}
    return [
        name for name, (before, after) in parts.items() if abs(before - after) > VISIBLE * scale.get(name, first.step)
    ]


def _differing(before: Baseline, after: Baseline) -> list[str]:
    was = {decision.name: decision.value for decision in before.plan.decisions}
    return [decision.name for decision in after.plan.decisions if decision.value != was[decision.name]]


def _is_stated(name: str, before: Baseline, after: Baseline) -> bool:
    """Whether the range of this decision holds for this change: it is one for more of it, on a device that has it."""
    if name not in STATED or after.plan.value("engine") != before.plan.value("engine"):
        return False
    was, now = before.plan.value(name), after.plan.value(name)
    better: dict[str, Any] = {
        "dataloader": lambda: now["workers"] > was["workers"],
        "compile": lambda: was == "off",
        "optimizer": lambda: now == "adamw_fused",
        "attention": lambda: now == "flash_attention_2" and after.plan.value("engine") == "trl",
        "compute_dtype": lambda: was == "float32" and after.plan.value("device") == "cuda",
    }
    return better[name]()
