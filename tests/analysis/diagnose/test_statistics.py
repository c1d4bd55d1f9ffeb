"""When a difference is outside the noise: by made noise, with and without a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loradock.analysis.diagnose.verdict import CAUSE
from loradock.env_check import paired_ratio
from loradock.env_check.paired_ratio import Ratio, ratio

DIAGNOSES = 2000
MOST_ROUNDS = 8


def decided(draw: np.random.Generator, *, true: float, noise: float, outliers: float = 0.0) -> Ratio:
    """Rounds are added as the search adds them, each the difference of two runs with their own noise."""
    found: list[float] = []
    while True:
        disturbed = draw.choice([-1, 1]) * draw.uniform(0.3, 1.0) if draw.random() < outliers else 0.0
        found.append(math.log(true) + math.sqrt(2) * noise * draw.standard_normal() + disturbed)
        result = ratio(found)
        if len(found) >= MOST_ROUNDS or result.side != "open":
            return result


def share(**world: float) -> float:
    draw = np.random.default_rng(0)
    results = [decided(draw, **world) for _ in range(DIAGNOSES)]
    return sum(each.side == "faster" and each.value >= CAUSE for each in results) / DIAGNOSES


@pytest.mark.thin(4)
@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_without_a_difference_a_cause_is_named_in_less_than_one_diagnosis_of_a_hundred(
    noise: float, outliers: float
) -> None:
    assert share(true=1.0, noise=noise, outliers=outliers) < 0.01


@pytest.mark.parametrize(("true", "noise", "outliers"), [(1.5, 0.02, 0.0), (2.0, 0.05, 0.0), (2.0, 0.02, 0.1)])
def test_a_difference_is_found(true: float, noise: float, outliers: float) -> None:
    assert share(true=true, noise=noise, outliers=outliers) > 0.95


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    results = [ratio(draw.normal(math.log(1.3), 0.05, size=5).tolist()) for _ in range(DIAGNOSES)]
    held = sum(each.low <= 1.3 <= each.high for each in results if each.low and each.high) / DIAGNOSES
    assert 0.92 < held < 0.97


def test_one_disturbed_round_of_four_does_not_count_and_two_do() -> None:
    calm = [0.50, 0.51, 0.49]
    result = ratio([*calm, 1.5])
    assert result.left_out == pytest.approx(math.exp(1.5))
    assert result.value == pytest.approx(math.exp(0.5), rel=0.01)
    assert ratio([*calm, 0.5, -0.5, 1.5]).left_out is None
    assert ratio([0.5, 0.51, 1.5]).left_out is None
    assert ratio([0.5, 0.51, 1.5]).side == "open"


def test_fewer_than_three_rounds_decide_nothing() -> None:
    assert (ratio([1.0]).side, ratio([1.0, 1.0]).side, ratio([1.0, 1.0, 1.0]).side) == ("open", "open", "faster")
    assert str(ratio([0.0])) == "1.00x"
    assert ratio([0.0, 0.0, 0.0]).side == "not"


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.706), (2, 4.303), (15, 2.131), (30, 2.042), (120, 1.980)])
def test_students_points_are_those_of_the_tables(freedom: int, point: float) -> None:
    assert paired_ratio.student(freedom) == pytest.approx(point, abs=0.005)
