"""What a change is worth by prediction: a factor, or a range where no model can say, and where the figure is from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from loradock.plan.audit.prediction import HOST, SAVING, Prediction, predicted
from loradock.plan.context import Context
from loradock.plan.knobs import knob
from loradock.plan.trial import Stated

MODEL = "speed model"
ARITHMETIC = "arithmetic: a forward pass is a third of a training pass"
VISIBLE = 1e-3
UNSEEN = "the speed model predicts no change; `loradock diagnose` measures it"


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


def gain(baseline: Context, changed: Context, *, touches_accuracy: bool = False) -> Gain:
    """How many times the real tokens a second a change gives: what it leaves out of the data is no gain.

    Where it `touches_accuracy`, evaluations and checkpoints that become cheaper are none: a cadence does that.
    """
    first, second = predicted(baseline), predicted(changed)
    if touches_accuracy:
        second = replace(second, evaluation=first.evaluation, saving=first.saving)
    factor = changed.step_tokens / second.step / (baseline.step_tokens / first.step)
    ranges = _stated(baseline, changed)
    low, high = math.prod(interval.low for interval in ranges), math.prod(interval.high for interval in ranges)
    sources = [*_sources(first, second), *(interval.source for interval in ranges)]
    return Gain(low=factor * low, high=factor * high, source="; ".join(sources) or UNSEEN)


def _sources(first: Prediction, second: Prediction) -> list[str]:
    parts = {
        MODEL: (first.passes - first.host, second.passes - second.host),
        HOST: (first.host, second.host),
        ARITHMETIC: (_share(first), _share(second)),
        SAVING: (first.saving, second.saving),
    }
    scale = {ARITHMETIC: 1.0}
    return [
        name
        for name, (seconds_before, seconds_after) in parts.items()
        if abs(seconds_before - seconds_after) > VISIBLE * scale.get(name, first.step)
    ]


def _share(of: Prediction) -> float:
    """What evaluations add to the passes; 0 where the speed model has no time for these, as of an odd shape."""
    return of.evaluation / of.passes if of.passes > 0 else 0.0


def _differing(baseline: Context, changed: Context) -> list[str]:
    was = {decision.name: decision.value for decision in baseline.plan.decisions}
    return [decision.name for decision in changed.plan.decisions if decision.value != was[decision.name]]


def _stated(baseline: Context, changed: Context) -> list[Stated]:
    """The ranges of the knobs that differ, where the engine is the same."""
    if changed.plan.engine.value != baseline.plan.engine.value:
        return []
    knobs = [knob(name) for name in _differing(baseline, changed)]
    return [knob_name.gain for knob_name in knobs if knob_name.gain and knob_name.gains(baseline.plan, changed.plan)]
