"""Curves as numbers: finite points in order, smoothed, thinned out for drawing, and the marks of an axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Point = tuple[float, float]
Look = Literal["line", "faint", "dots"]

SPANS = 200
"""Spans of a curve that is thinned out; each keeps at most four points."""
POINTS_A_SPAN = 4
DOTTED_POINTS = 30
"""Up to so many points, each gets a dot."""
SMOOTHED_FROM = 20
SMOOTHED_SHARE = 50
SHORTEST_SMOOTHING = 5


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve. `points` are what is drawn, of `total` values; `run` is the number of its run in the report.

    `slot` is its place in the palette; `left_out` counts values that are no finite number.
    """

    name: str
    run: int
    slot: int
    look: Look
    points: tuple[Point, ...]
    total: int
    left_out: int = 0

    @property
    def has_dots(self) -> bool:
        """Whether single points are marked."""
        return self.look == "dots" or len(self.points) <= DOTTED_POINTS


def thinned(points: Sequence[Point], *, spans: int = SPANS) -> tuple[Point, ...]:
    """The points to draw: all of a few; of many the first, lowest, highest and last of each of `spans` equal spans.

    That is M4 (Jugel et al., VLDB 2014): no extreme is lost, and a curve as wide as `spans` pixels looks the same.
    Points are by rising x.
    """
    if len(points) <= spans * POINTS_A_SPAN:
        return tuple(points)
    start, end = points[0][0], points[-1][0]
    if end <= start:
        return m4(points)
    groups: list[list[Point]] = [[] for _ in range(spans)]
    for point in points:
        groups[min(spans - 1, int((point[0] - start) * spans / (end - start)))].append(point)
    return tuple(point for group in groups if group for point in m4(group))


def m4(group: Sequence[Point]) -> tuple[Point, ...]:
    """First, lowest, highest and last point, in order, each once."""
    ys = [y for _, y in group]
    indices = {0, ys.index(min(ys)), ys.index(max(ys)), len(group) - 1}
    return tuple(group[position] for position in sorted(indices))


def smoothing_span(count: int) -> int:
    """How many values a smoothed curve is the mean of, roughly; 0 for a curve too short to be smoothed."""
    return 0 if count < SMOOTHED_FROM else max(SHORTEST_SMOOTHING, count // SMOOTHED_SHARE)


def smoothed(ys: Iterable[float], *, span: int) -> list[float]:
    """Exponentially weighted means with a weight of 2 / (span + 1) for the newest value, corrected for the beginning.

    The correction divides by the sum of the weights so far, as Adam does (arXiv 1412.6980).
    """
    weight = 2 / (span + 1)
    means: list[float] = []
    mean = total = 0.0
    for y in ys:
        mean += weight * (y - mean)
        total += weight * (1 - total)
        means.append(mean / total)
    return means


def ticks(low: float, high: float, *, count: int = 4) -> list[float]:
    """Round numbers from `low` to `high`, about `count` steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def bounds(values: Sequence[float], *, is_from_zero: bool) -> tuple[float, float]:
    """The lower and upper end of an axis that shows all values, with a little room; never of the same size."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if is_from_zero:
        low, high = min(0.0, low), max(0.0, high)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (low if is_from_zero and low == 0 else low - room), high + room
