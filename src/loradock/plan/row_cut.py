"""What a data set comes to when its rows are cut: bounds and an estimate from their mean and longest length alone."""

from __future__ import annotations

import math
from dataclasses import replace

from loradock.facts import DataFacts


def lost_shares(data: DataFacts, length: int) -> tuple[float, float]:
    """The least and the most of all tokens that a cut at `length` can take, by the mean and the longest row.

    Least: all rows are as long as the mean. Most: all tokens lie in rows as long as the longest (what is cut off is a
    convex function of a row's length, so these are its bounds).
    """
    least = max(0.0, 1 - length / data.mean_tokens)
    most = max(0.0, 1 - length / data.longest_tokens)
    return least, most


def estimated(data: DataFacts, length: int) -> DataFacts:
    """The data set with rows cut at `length` tokens, by its mean and its longest row alone.

    Lengths are taken to be spread exponentially, so that a row loses `mean x exp(-length / mean)` tokens on average, an
    assumption, which `lost_shares` bounds. `data stats` counts.
    """
    if length >= data.longest_tokens:
        return replace(data, limit_tokens=length)
    least, most = lost_shares(data, length)
    share_kept = 1 - min(most, max(least, math.exp(-length / data.mean_tokens)))
    tokens = int(data.tokens * share_kept)
    return replace(
        data,
        tokens=tokens,
        supervised_tokens=int(data.supervised_tokens * share_kept),
        limit_tokens=length,
        longest_tokens=length,
        lost_tokens=data.lost_tokens + data.tokens - tokens,
    )
