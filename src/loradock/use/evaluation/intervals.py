"""What a score of few rows says: intervals, paired tests, and the difference that could have been seen.

Only counts and numbers come in; nothing here knows a model. z is 1.96 throughout (two-sided 95 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Z = NormalDist().inv_cdf(0.975)
POWER = 0.8
ASSUMED_DISAGREEMENT = 0.1
"""Share of rows on which two models differ, where only one was evaluated."""
RESAMPLES = 2_000
FLIPS = 10_000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A paired difference, own minus other, with its 95 % interval and two-sided p.

    `own_only`, `other_only`: rows that one of them alone answers correctly; None where scores are not right or wrong.
    """

    difference: float
    low: float
    high: float
    p: float
    own_only: int | None = None
    other_only: int | None = None


def wilson(right: int, rows: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927, the score interval). ValueError for no rows."""
    if rows < 1:
        raise ValueError("an interval needs at least one row")
    share = right / rows
    centre = share + Z * Z / (2 * rows)
    half = Z * math.sqrt(share * (1 - share) / rows + Z * Z / (4 * rows * rows))
    low, high = (centre - half) / (1 + Z * Z / rows), (centre + half) / (1 + Z * Z / rows)
    return (0.0 if right == 0 else low), (1.0 if right == rows else high)


def mcnemar(own_only: int, other_only: int) -> float:
    """Two-sided exact p of McNemar's test (1947): discordant rows as tosses of a fair coin; 1 where there are none."""
    tosses, fewer = own_only + other_only, min(own_only, other_only)
    tail = sum(math.comb(tosses, heads) for heads in range(fewer + 1))
    return min(1.0, 2 * tail / 2**tosses)


def paired_shares(own: Sequence[bool], other: Sequence[bool]) -> Difference:
    """The difference of two shares of the same rows.

    p: exact McNemar. Interval: Newcombe 1998 (Statistics in Medicine 17, 2635-2650), method 10: both Wilson intervals,
    squared and added, with the correlation of the pairs.
    """
    pairs = list(zip(own, other, strict=True))
    agreement, neither = sum(a and b for a, b in pairs), sum(not a and not b for a, b in pairs)
    own_only, other_only = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    rows = len(pairs)
    first, second = (agreement + own_only) / rows, (agreement + other_only) / rows
    (low1, high1), (low2, high2) = wilson(agreement + own_only, rows), wilson(agreement + other_only, rows)
    phi = _correlation(agreement, own_only, other_only, neither)
    below = _added(first - low1, high2 - second, phi)
    above = _added(high1 - first, second - low2, phi)
    return Difference(
        difference=first - second,
        low=first - second - below,
        high=first - second + above,
        p=mcnemar(own_only, other_only),
        own_only=own_only,
        other_only=other_only,
    )


def _added(total: float, two: float, phi: float) -> float:
    return math.sqrt(max(0.0, total * total - 2 * phi * total * two + two * two))


def _correlation(agreements: int, own_only: int, other_only: int, neither: int) -> float:
    """phi with Newcombe's continuity correction; 0 where a margin is empty."""
    margins = (agreements + own_only) * (other_only + neither) * (agreements + other_only) * (own_only + neither)
    if not margins:
        return 0.0
    cross = agreements * neither - own_only * other_only
    rows = agreements + own_only + other_only + neither
    corrected = max(cross - rows / 2, 0.0) if cross > 0 else cross
    return corrected / math.sqrt(margins)


def mean_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a mean: percentiles of bootstrap means (Efron 1979), 2,000 resamples."""
    scores = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = [float(scores[rng.integers(len(scores), size=len(scores))].mean()) for _ in range(RESAMPLES)]
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def ratio_interval(sums: Sequence[float], weights: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of sum(sums) / sum(weights), rows drawn by bootstrap: a loss a token, of rows of any length."""
    tops, bottoms = np.asarray(sums, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    rng = np.random.default_rng(seed)
    bounds: list[float] = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(len(tops), size=len(tops))
        bounds.append(float(tops[drawn].sum() / bottoms[drawn].sum()))
    low, high = np.percentile(bounds, (2.5, 97.5))
    return float(low), float(high)


def paired_means(own: Sequence[float], other: Sequence[float], *, seed: int = 0) -> Difference:
    """The difference of two means of the same rows: bootstrap interval; p by random sign flips (Fisher 1935)."""
    gained = np.asarray(own, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    low, high = mean_interval(gained.tolist(), seed=seed)
    rng = np.random.default_rng(seed)
    threshold = abs(float(gained.sum())) * (1 - 1e-12)
    beyond = 0
    for _ in range(FLIPS):
        beyond += abs(float(np.where(rng.random(len(gained)) < 0.5, gained, -gained).sum())) >= threshold
    return Difference(difference=float(gained.mean()), low=low, high=high, p=(beyond + 1) / (FLIPS + 1))


def holm(ps: Sequence[float]) -> list[float]:
    """The p of each of several tests, adjusted for their number (Holm 1979), in the order given."""
    adjusted = [0.0] * len(ps)
    reached = 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda pair: ps[pair])):
        reached = max(reached, min(1.0, (len(ps) - place) * ps[index]))
        adjusted[index] = reached
    return adjusted


def detectable(rows: int, disagreement: float = ASSUMED_DISAGREEMENT) -> float | None:
    """The difference of two shares that McNemar's test sees in 80 of 100 experiments, at a level of 5 %.

    Solves rows = (z95 sqrt(psi) + z80 sqrt(psi - d^2))^2 / d^2 for d (Connor 1987, Biometrics 43, 207-211); psi is the
    share of rows on which the two disagree, which bounds d: None where even psi is too small to be seen.
    """
    power = NormalDist().inv_cdf(POWER)

    def is_seen(difference: float) -> bool:
        needed = Z * math.sqrt(disagreement) + power * math.sqrt(disagreement - difference**2)
        return bool(difference) and needed**2 <= rows * difference**2

    if not is_seen(disagreement):
        return None
    low, high = 0.0, disagreement
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_seen(middle) else (middle, high)
    return high
