"""What is measured, round by round: the baseline, a trial, or several trials together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loradock.analysis.diagnose.measure import Failed, Measured, mean
from loradock.plan.trial import Trial


@dataclass
class Arm:
    """One thing that is measured: the baseline, a trial, or several trials together."""

    name: str
    settings: tuple[str, ...]
    trials: tuple[Trial, ...] = ()
    rounds: dict[int, Measured] = field(default_factory=dict[int, Measured])
    failure: Failed | None = None
    bound: float | None = None

    @property
    def trial(self) -> Trial:
        """The trial of an arm that has just one."""
        return self.trials[0]

    def against(self, baseline: Arm) -> list[float]:
        """The logarithm of how much faster than another one, for each round in which both were measured."""
        rounds = sorted(self.rounds.keys() & baseline.rounds.keys())
        return [self.rounds[round_number].faster_than(baseline.rounds[round_number]) for round_number in rounds]

    @property
    def measured(self) -> Measured | None:
        """The mean over its rounds."""
        return mean([self.rounds[round_number] for round_number in sorted(self.rounds)]) if self.rounds else None


def rotated(arms: Sequence[Arm], by: int) -> list[Arm]:
    """Another one first in each round, so that none is always measured after the same."""
    start = by % len(arms) if arms else 0
    return [*arms[start:], *arms[:start]]


def key(setting: str) -> str:
    """The dotted key of a KEY=VALUE."""
    return setting.partition("=")[0]
