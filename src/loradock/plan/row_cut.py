"""What a data set comes to when its rows are cut: bounds and an estimate from their mean and longest length alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from loradock.facts import DataFacts

LongRows = Literal["split", "truncate", "drop"]


def lost_shares(data: DataFacts, length: int) -> tuple[float, float]:
    """The least and the most of all tokens that a cut at `length` can take, by the mean and the longest row.

    Least: all rows are as long as the mean. Most: all tokens lie in rows as long as the longest (what is cut off is a
    convex function of a row's length, so these are its bounds).
    """
    least = max(0.0, 1 - length / data.mean_tokens)
    most = max(0.0, 1 - length / data.longest_tokens)
    return least, most


def longer_rows(data: DataFacts, length: int) -> int:
    """How many rows are taken to be longer: lengths spread exponentially, within what mean and longest row allow."""
    rows = data.train_rows
    least = rows * max(0.0, data.mean_tokens - length) / (data.longest_tokens - length)
    most = data.tokens / (length + 1)
    return min(rows, math.ceil(max(least, min(most, rows * math.exp(-length / data.mean_tokens)))))


def estimated(data: DataFacts, length: int, *, long_rows: LongRows) -> DataFacts:
    """The data set with rows of at most `length` tokens, by its mean and its longest row alone.

    Lengths are taken to be spread exponentially, an assumption within the bounds of mean and longest. `data stats`
    counts.
    """
    if length >= data.longest_tokens:
        return replace(data, limit_tokens=length)
    data = replace(data, limit_tokens=length)
    return {"split": _split, "truncate": _cut, "drop": _dropped}[long_rows](data, length)


def _split(data: DataFacts, length: int) -> DataFacts:
    """Windows: every token stays, and each window but a row's first repeats the token before it.

    A row has one more window for each `length` that it goes beyond, which a share of exp(-k x length / mean) does.
    """
    step = max(1, length - 1)
    most = math.ceil(data.longest_tokens / step) - 1
    more = round(data.train_rows * sum(math.exp(-k * step / data.mean_tokens) for k in range(1, most + 1)))
    least = math.ceil(data.tokens / step) - data.train_rows
    more = max(more, least, longer_rows(data, length))
    return replace(
        data,
        train_rows=data.train_rows + more,
        samples_per_epoch=round(data.samples_per_epoch * (1 + more / data.train_rows)),
        tokens=data.tokens + more,
        split_rows=longer_rows(data, length),
        longest_tokens=length,
    )


def _cut(data: DataFacts, length: int) -> DataFacts:
    """The beginnings: a row loses `mean x exp(-length / mean)` tokens on average."""
    least, most = lost_shares(data, length)
    lost = min(most, max(least, math.exp(-length / data.mean_tokens)))
    short = _without(data, tokens=data.tokens - int(data.tokens * (1 - lost)))
    return replace(short, truncated_rows=longer_rows(data, length), longest_tokens=length)


def _dropped(data: DataFacts, length: int) -> DataFacts:
    """The shorter rows: one that is longer than `length` has `length + mean` tokens on average. One row stays."""
    rows = min(longer_rows(data, length), data.train_rows - 1)
    dropped = data.train_rows - rows
    lost = min(data.tokens - dropped, round(rows * min(data.longest_tokens, length + data.mean_tokens)))
    lost = max(lost, data.tokens - dropped * length)
    short = _without(data, tokens=lost)
    return replace(
        short,
        train_rows=dropped,
        samples_per_epoch=max(1, round(data.samples_per_epoch * dropped / data.train_rows)),
        dropped_rows=data.dropped_rows + rows,
        longest_tokens=length,
    )


def _without(data: DataFacts, *, tokens: int) -> DataFacts:
    """The data set without so many of its tokens."""
    return replace(
        data,
        tokens=data.tokens - tokens,
        supervised_tokens=int(data.supervised_tokens * (1 - tokens / data.tokens)),
        lost_tokens=data.lost_tokens + tokens,
    )
