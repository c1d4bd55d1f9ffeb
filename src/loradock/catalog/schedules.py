"""The schedules of `train.schedule`: the learning rate after warm-up, as a share of its peak.

To add one: a function of a step, and its entry in `SCHEDULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

UNWARMED_STEPS = 10_000
"""What inverse_sqrt takes for its warm-up where there is none, as transformers does."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """A step (from 0) of a run of `total_steps`, after its warm-up of `warmup_steps`."""

    step: int
    warmup_steps: int
    total_steps: int

    @property
    def progress(self) -> float:
        """From 0 at the end of warm-up to 1, one step after the last."""
        return min(1.0, (self.step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))


Settings = Mapping[str, Any]
"""The values of the schedule's keys, by their names in `train`."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One schedule: `factor` gives the share of the peak, `keys` are those of `train` that it reads."""

    name: str
    factor: Callable[[Position, Settings], float]
    keys: tuple[str, ...] = ()

    def settings(self, train: object) -> dict[str, Any]:
        """What the section `train` of a configuration says for it."""
        return {key: getattr(train, key) for key in self.keys}


def as_steps(share_or_steps: float, *, of_steps: int) -> int:
    """A share of `of_steps` below 1, rounded up, else steps; at most all of them."""
    return min(of_steps, math.ceil(share_or_steps * of_steps) if share_or_steps < 1 else int(share_or_steps))


def _constant(_position: Position, _settings: Settings) -> float:
    return 1.0


def _linear(position: Position, settings: Settings) -> float:
    return _above_floor(1 - position.progress, settings)


def _cosine(position: Position, settings: Settings) -> float:
    return _above_floor(_half_wave(position.progress), settings)


def _cosine_with_restarts(position: Position, settings: Settings) -> float:
    """Loshchilov and Hutter 2017, cycles of equal length."""
    progress = position.progress
    share = _half_wave((settings["cycles"] * progress) % 1.0) if progress < 1 else 0.0
    return _above_floor(share, settings)


def _polynomial(position: Position, settings: Settings) -> float:
    return _above_floor((1 - position.progress) ** settings["power"], settings)


def _inverse_sqrt(position: Position, _settings: Settings) -> float:
    """By 1 / sqrt(step), as Vaswani et al. 2017, from the peak at the end of warm-up."""
    timescale = position.warmup_steps or UNWARMED_STEPS
    return math.sqrt(timescale / (position.step - position.warmup_steps + timescale))


def _wsd(position: Position, settings: Settings) -> float:
    """Warm-up, stable, decay (Hu et al. 2024); the shape 1-sqrt is that of Hägele et al. 2024."""
    left = position.total_steps - position.warmup_steps
    decay_steps = min(left, as_steps(settings["decay"], of_steps=position.total_steps))
    begin = position.total_steps - decay_steps
    if position.step < begin:
        return 1.0
    return _above_floor(DECAY_SHAPES[settings["decay_shape"]]((position.step - begin) / max(1, decay_steps)), settings)


def _half_wave(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _above_floor(share: float, settings: Settings) -> float:
    floor = settings["min_learning_rate_ratio"]
    return share * (1 - floor) + floor


DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    "cosine": _half_wave,
    "linear": lambda progress: 1 - progress,
    "1-sqrt": lambda progress: 1 - math.sqrt(progress),
}
"""How wsd falls: the share that is left at a progress from 0 to 1."""
FLOOR = "min_learning_rate_ratio"

SCHEDULES: dict[str, Schedule] = {
    entry.name: entry
    for entry in (
        Schedule(name="cosine", factor=_cosine, keys=(FLOOR,)),
        Schedule(name="linear", factor=_linear, keys=(FLOOR,)),
        Schedule(name="constant", factor=_constant),
        Schedule(name="cosine_with_restarts", factor=_cosine_with_restarts, keys=(FLOOR, "cycles")),
        Schedule(name="polynomial", factor=_polynomial, keys=(FLOOR, "power")),
        Schedule(name="inverse_sqrt", factor=_inverse_sqrt),
        Schedule(name="wsd", factor=_wsd, keys=(FLOOR, "decay", "decay_shape")),
    )
}
OWN_KEYS = tuple(dict.fromkeys(key for schedule in SCHEDULES.values() for key in schedule.keys))
"""Keys of `train` that only some schedules read."""

if TYPE_CHECKING:
    ScheduleName = str
    DecayShape = str
else:
    ScheduleName = Literal[tuple(SCHEDULES)]
    DecayShape = Literal[tuple(DECAY_SHAPES)]
