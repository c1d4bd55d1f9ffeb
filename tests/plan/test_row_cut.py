"""Described rows that are longer than the longest row allowed: what splitting, cutting and dropping them comes to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from facts.recorded import data

from loradock.facts import DataFacts
from loradock.plan.row_cut import LongRows, estimated

LENGTHS = (256, 512, 2048)


def drawn(mean: int, longest: int) -> tuple[list[int], DataFacts]:
    """Row lengths, spread exponentially, and their facts."""
    draw = random.Random(mean)
    lengths = [min(longest, 2 + int(draw.expovariate(1 / mean))) for _ in range(4000)]
    facts = replace(
        data(rows=len(lengths)),
        tokens=sum(lengths),
        supervised_tokens=sum(lengths) // 2,
        longest_tokens=max(lengths),
        limit_tokens=max(lengths),
    )
    return lengths, facts


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mean", [100, 500, 3000])
def test_splitting_keeps_every_token_and_counts_the_windows(mean: int, length: int) -> None:
    lengths, facts = drawn(mean, 16_000)
    split = estimated(facts, length, long_rows="split")
    windows = sum(max(1, -(-(each - 1) // (length - 1))) for each in lengths)
    assert split.tokens == facts.tokens + split.train_rows - facts.train_rows
    assert split.train_rows == pytest.approx(windows, rel=0.05)
    assert split.split_rows == pytest.approx(sum(each > length for each in lengths), rel=0.1, abs=20)
    assert (split.supervised_tokens, split.lost_tokens) == (facts.supervised_tokens, 0)
    assert split.samples_per_epoch == split.train_rows
    assert split.mean_tokens <= length


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("mean", [100, 500, 3000])
def test_cutting_and_dropping_say_what_is_lost(mean: int, length: int) -> None:
    lengths, facts = drawn(mean, 16_000)
    kept = {
        "truncate": sum(min(each, length) for each in lengths),
        "drop": sum(each for each in lengths if each <= length),
    }
    longer = sum(each > length for each in lengths)
    for long_rows in ("truncate", "drop"):
        cut = estimated(facts, length, long_rows=long_rows)
        assert cut.tokens + cut.lost_tokens == facts.tokens
        assert cut.tokens == pytest.approx(kept[long_rows], rel=0.1)
        assert cut.truncated_rows + cut.dropped_rows == pytest.approx(longer, rel=0.1, abs=20)
        assert cut.mean_tokens <= length


@pytest.mark.parametrize("long_rows", ["split", "truncate", "drop"])
def test_rows_that_are_all_alike_and_too_long_are_counted_too(long_rows: LongRows) -> None:
    facts = replace(data(rows=10), tokens=10_000, longest_tokens=1000, limit_tokens=1000, samples_per_epoch=10)
    cut = estimated(facts, 100, long_rows=long_rows)
    assert 0 < cut.mean_tokens <= 100
    assert cut.split_rows + cut.truncated_rows + cut.dropped_rows == (9 if long_rows == "drop" else 10)
