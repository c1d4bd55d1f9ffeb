"""Intervals and paired tests against scipy, closed forms, and simulated pairs of equal models."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from scipy.stats import binomtest

from loradock.use.evaluation import intervals

pytestmark = pytest.mark.thin(1)


@pytest.mark.parametrize(("right", "rows"), [(0, 7), (7, 7), (1, 1), (81, 263), (125, 200), (311, 500)])
def test_the_interval_of_a_share_is_wilsons(right: int, rows: int) -> None:
    wanted = binomtest(right, rows).proportion_ci(method="wilson")
    assert intervals.wilson(right, rows) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_an_interval_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        intervals.wilson(0, 0)


@pytest.mark.parametrize(("own", "other"), list(itertools.product((0, 1, 5, 17, 120), repeat=2)))
def test_mcnemars_p_is_that_of_the_binomial_test(own: int, other: int) -> None:
    wanted = binomtest(own, own + other).pvalue if own + other else 1.0
    assert intervals.mcnemar(own, other) == pytest.approx(wanted, rel=1e-9)


def pairs(both: int, own: int, other: int, neither: int) -> tuple[list[bool], list[bool]]:
    counts = ((True, True, both), (True, False, own), (False, True, other), (False, False, neither))
    rows = [(first, second) for first, second, count in counts for _ in range(count)]
    return [first for first, _ in rows], [second for _, second in rows]


def test_where_rows_are_unrelated_the_paired_interval_adds_both_intervals_squared() -> None:
    found = intervals.paired_shares(*pairs(10, 15, 10, 15))  # phi is 0
    (low1, high1), (low2, high2) = intervals.wilson(25, 50), intervals.wilson(20, 50)
    assert (found.own_only, found.other_only) == (15, 10)
    assert found.low == pytest.approx(0.1 - math.hypot(0.5 - low1, high2 - 0.4))
    assert found.high == pytest.approx(0.1 + math.hypot(high1 - 0.5, 0.4 - low2))


def test_where_models_agree_the_paired_interval_is_narrower() -> None:
    alike, unlike = (intervals.paired_shares(*pairs(*each)) for each in ((45, 5, 2, 48), (25, 25, 22, 28)))
    assert alike.difference == pytest.approx(unlike.difference)
    assert alike.high - alike.low < 0.5 * (unlike.high - unlike.low)
    assert intervals.paired_shares(*pairs(0, 0, 0, 30)).high == pytest.approx(intervals.wilson(0, 30)[1], abs=1e-9)


def test_the_other_way_round_the_interval_is_mirrored() -> None:
    own, other = pairs(20, 11, 4, 15)
    found, mirrored = intervals.paired_shares(own, other), intervals.paired_shares(other, own)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low), abs=1e-12)
    assert mirrored.p == found.p


def test_of_a_thousand_pairs_of_equal_models_few_differ_significantly() -> None:
    draw = random.Random(7)
    significant = covered = 0
    for _ in range(1_000):
        hard = [draw.random() for _ in range(300)]
        own, other = ([draw.random() < each for each in hard] for _ in range(2))
        found = intervals.paired_shares(own, other)
        significant += found.p < 0.05
        covered += found.low <= 0 <= found.high
    assert 0.005 <= significant / 1_000 <= 0.065
    assert covered / 1_000 >= 0.93


def test_the_same_of_scores_that_are_not_right_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "FLIPS", 400)
    monkeypatch.setattr(intervals, "RESAMPLES", 400)
    draw = random.Random(3)
    significant = 0
    for seed in range(200):
        own, other = ([draw.random() for _ in range(40)] for _ in range(2))
        significant += intervals.paired_means(own, other, seed=seed).p < 0.05
    assert 0.01 <= significant / 200 <= 0.1
    clear = intervals.paired_means([each + 0.5 for each in own], own)
    assert clear.low == pytest.approx(0.5)
    assert clear.p < 0.01


def test_holms_p_of_several_tests() -> None:
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert intervals.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert intervals.holm([]) == []


def test_the_difference_that_can_be_seen() -> None:
    assert intervals.detectable(500, 0.1) == pytest.approx(0.040, abs=0.0005)
    assert intervals.detectable(22_419, 0.1) == pytest.approx(0.006, abs=0.0005)
    assert intervals.detectable(77, 0.1) == pytest.approx(0.1, abs=0.001)
    assert intervals.detectable(76, 0.1) is None  # not even where one alone is right on all that they disagree on
    assert intervals.detectable(500, 0.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_difference_of_that_size_is_seen_about_as_often_as_it_says(seed: int) -> None:
    rows, disagreement, trials = 500, 0.2, 400
    gained = intervals.detectable(rows, disagreement)
    assert gained is not None
    draw = random.Random(seed)
    seen = 0
    for _ in range(trials):
        tossed = [draw.random() for _ in range(rows)]
        own = sum(each < (disagreement + gained) / 2 for each in tossed)
        other = sum((disagreement + gained) / 2 <= each < disagreement for each in tossed)
        seen += intervals.mcnemar(own, other) < 0.05
    assert 0.7 <= seen / trials <= 0.86  # the exact test is a little weaker than its normal approximation


def test_a_loss_of_long_and_short_rows_is_a_mean_over_tokens() -> None:
    low, high = intervals.ratio_interval([10.0, 200.0], [10, 100])
    assert (low, high) == (1.0, 2.0)
    assert intervals.mean_interval([1.0, 1.0, 1.0]) == (1.0, 1.0)
    assert not math.isnan(low)
