"""Curves: thinned out without losing an extreme, smoothed as defined, with axes that hold every value."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from loradock.analysis.report.html import series


def noisy(count: int) -> list[series.Point]:
    draw = random.Random(1)
    return [(float(index), draw.gauss(0, 1)) for index in range(count)]


def test_a_short_curve_is_drawn_whole() -> None:
    points = noisy(series.SPANS * series.POINTS_A_SPAN)
    assert series.thinned(points) == tuple(points)


def span_of(x: float, count: int) -> int:
    return min(series.SPANS - 1, int(x * series.SPANS / (count - 1)))


def extremes(points: Sequence[series.Point], count: int) -> list[tuple[float, float]]:
    """The lowest and the highest value of every span."""
    groups: list[list[float]] = [[] for _ in range(series.SPANS)]
    for x, y in points:
        groups[span_of(x, count)].append(y)
    return [(min(group), max(group)) for group in groups]


@pytest.mark.parametrize("count", [801, 5_000, 100_000])
def test_a_long_curve_keeps_the_ends_and_the_extremes_of_every_span(count: int) -> None:
    points = noisy(count)
    kept = series.thinned(points)
    assert len(kept) <= series.SPANS * series.POINTS_A_SPAN
    assert set(kept) <= set(points)
    assert list(kept) == sorted(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert extremes(kept, count) == extremes(points, count)


def test_a_spike_of_one_value_in_a_hundred_thousand_is_drawn() -> None:
    points = [(float(index), 1.0) for index in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    assert (54_321.0, 99.0) in series.thinned(points)


def test_many_values_at_one_place_are_thinned_out_too() -> None:
    points = [(3.0, float(y)) for y in range(2_000)]
    assert series.thinned(points) == ((3.0, 0.0), (3.0, 1999.0))


def test_the_smoothed_curve_of_a_constant_is_that_constant_from_its_first_value_on() -> None:
    assert series.smoothed([2.5] * 10, span=5) == pytest.approx([2.5] * 10)


def test_smoothing_weighs_the_newest_value_most() -> None:
    assert series.smoothed([0.0, 1.0], span=3) == pytest.approx([0.0, 0.5 / 0.75])


def test_smoothing_keeps_the_mean_and_takes_the_noise_away() -> None:
    ys = [y for _, y in noisy(2_000)]
    smooth = series.smoothed(ys, span=series.smoothing_span(len(ys)))[100:]
    assert abs(sum(smooth) / len(smooth)) < 0.1
    assert max(map(abs, smooth)) < max(map(abs, ys)) / 3


def test_a_curve_of_a_few_values_is_not_smoothed() -> None:
    assert series.smoothing_span(series.SMOOTHED_FROM - 1) == 0
    assert series.smoothing_span(series.SMOOTHED_FROM) == series.SHORTEST_SMOOTHING


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (1.0, 40.0, [10.0, 20.0, 30.0, 40.0]),
        (-0.02, 0.02, [-0.02, -0.01, 0.0, 0.01, 0.02]),
        (0.0, 2e-4, [0.0, 5e-5, 1e-4, 1.5e-4, 2e-4]),
        (7.0, 7.0, [7.0]),
    ],
)
def test_marks_of_an_axis_are_round_and_lie_inside_it(low: float, high: float, expected: list[float]) -> None:
    assert series.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [-1.0, 3.0], [1e-9, 2e-9]])
@pytest.mark.parametrize("is_from_zero", [True, False])
def test_an_axis_holds_every_value_and_is_never_of_no_length(values: list[float], is_from_zero: bool) -> None:
    low, high = series.bounds(values, is_from_zero=is_from_zero)
    assert low < high
    assert all(low <= value <= high for value in values)
    assert not is_from_zero or low <= 0 <= high
