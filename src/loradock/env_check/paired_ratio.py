"""How much faster, and how sure: the ratio of paired measurements with a 95 % interval. Pure arithmetic.

A pair is two runs of one round, one right after another, so that what slows the machine slows both. The logarithms of
the ratios are averaged, with Student's t for the interval. One round may have been disturbed: where a single ratio lies
further from the median than `OUTLIER` robust standard deviations (the median absolute deviation x 1.4826; Hampel's
identifier), it is left out. Three rounds are too few to tell which one it was; their interval is just wide then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FASTER = 1.05
"""Below it a difference is of no interest."""
LEAST_ROUNDS = 3
OUTLIER = 8.0
OUTLIER_ROUNDS = 4
ROBUST = 1.4826
LEAST_TRIALS = 3
LEAST_DEVIATION = 0.002
"""Of logarithms of time: two runs that agree better do so by chance."""
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip
"""The 97.5 % point of Student's t for 1, 2, 3, ... degrees of freedom."""
NORMAL = 1.959964
"""The same of the normal distribution."""

Side = Literal["faster", "not", "open"]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times faster, with the ends of the 95 % interval; None below two rounds. `left_out` is an outlier's."""

    value: float
    low: float | None = None
    high: float | None = None
    rounds: int
    left_out: float | None = None

    @property
    def side(self) -> Side:
        """Whether the interval says that it is faster by more than FASTER, or that it is not; else it is open."""
        if self.low is None or self.high is None or self.rounds < LEAST_ROUNDS:
            return "open"
        if self.low > FASTER:
            return "faster"
        return "not" if self.high < FASTER else "open"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}x"
        return f"{self.value:.2f}x ({self.low:.2f} .. {self.high:.2f})"


def ratio(logarithms: Sequence[float], *, least_deviation: float = LEAST_DEVIATION) -> Ratio:
    """Of the natural logarithms of the ratios of at least one round.

    Three rounds may agree by chance: the noise is taken to be `least_deviation` at least, which `typical` finds.
    """
    rounds = len(logarithms)
    typical_ones, left_out = without_outlier(logarithms)
    mean = statistics.fmean(typical_ones)
    outlier = None if left_out is None else math.exp(left_out)
    if len(typical_ones) < 2:
        return Ratio(value=math.exp(mean), rounds=rounds)
    deviation = max(least_deviation, statistics.stdev(typical_ones))
    reach = student(len(typical_ones) - 1) * deviation / math.sqrt(len(typical_ones))
    low, high = math.exp(mean - reach), math.exp(mean + reach)
    return Ratio(value=math.exp(mean), low=low, high=high, rounds=rounds, left_out=outlier)


def typical(several: Sequence[Sequence[float]]) -> float:
    """The median standard deviation of several trials' logarithms; LEAST_DEVIATION where they are too few to tell."""
    if not is_known(several):
        return LEAST_DEVIATION
    return statistics.median(deviation(without_outlier(values)[0]) for values in several if len(values) >= LEAST_ROUNDS)


def is_known(several: Sequence[Sequence[float]]) -> bool:
    """Whether the trials are enough, each with enough rounds, to tell what is typical."""
    return sum(len(values) >= LEAST_ROUNDS for values in several) >= LEAST_TRIALS


def deviation(logarithms: Sequence[float]) -> float:
    """The standard deviation of at least two, LEAST_DEVIATION at least."""
    return max(LEAST_DEVIATION, statistics.stdev(logarithms))


def without_outlier(values: Sequence[float]) -> tuple[list[float], float | None]:
    """The values without the one that lies far from all others, and that one, where there is one."""
    if len(values) < OUTLIER_ROUNDS:
        return list(values), None
    middle = statistics.median(values)
    distances = [abs(value - middle) for value in values]
    spread = max(LEAST_DEVIATION, ROBUST * statistics.median(distances))
    far = [index for index, distance in enumerate(distances) if distance > OUTLIER * spread]
    if len(far) != 1:
        return list(values), None
    return [value for index, value in enumerate(values) if index != far[0]], values[far[0]]


def caution(rounds: int) -> float:
    """By how much a deviation of so few (at least two) is taken to be larger: Student's t over the normal's."""
    return student(rounds - 1) / NORMAL


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t; beyond the table by the first terms of its expansion about the normal."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    return NORMAL + (NORMAL**3 + NORMAL) / (4 * freedom)
