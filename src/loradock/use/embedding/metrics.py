"""What evaluation measures, in numpy: rankings with nDCG, recall and MRR; Spearman's rank correlation; intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
CUTOFF = 10
QUERIES, PASSAGES = 256, 65_536
"""Whose scores are in memory at once."""
RESAMPLES = 2_000
NAMES = ("ndcg@10", "recall@1", "recall@10", "mrr@10")


def ranked(queries: Floats, passages: Floats, *, count: int = CUTOFF) -> Ints:
    """The passages nearest to each query by dot product, int64 [queries, count at most]; of equals the first."""
    blocks: list[Ints] = []
    for few in np.array_split(queries, max(1, -(-len(queries) // QUERIES))):
        best, places = np.empty((len(few), 0), dtype=np.float32), np.empty((len(few), 0), dtype=np.int64)
        for start in range(0, len(passages), PASSAGES):
            scores = few @ passages[start : start + PASSAGES].T
            near = np.stack([_top(line, count) for line in scores])
            best = np.hstack([best, np.take_along_axis(scores, near, 1)])
            places = np.hstack([places, near + start])
            top = np.stack([_top(line, count) for line in best])
            best, places = np.take_along_axis(best, top, 1), np.take_along_axis(places, top, 1)
        blocks.append(places)
    return np.concatenate(blocks)


def _top(scores: Floats, count: int) -> Ints:
    """The places of the highest scores, in order; of equals the first."""
    near = np.arange(len(scores))
    if len(scores) > count:
        near = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return near[np.argsort(-scores[near], kind="stable")][:count]


def retrieval(rankings: Ints, gains: Sequence[Mapping[int, float]]) -> dict[str, Floats]:
    """Each measure of each query, float64 [queries]: `gains` is what its passages are worth, by place; above 0.

    nDCG has linear gains (Järvelin and Kekäläinen 2002; trec_eval's ndcg_cut), recall the share of relevant passages.
    """
    rows = [
        _of_query([ranking.get(int(place), 0.0) for place in line], ranking)
        for line, ranking in zip(rankings, gains, strict=True)
    ]
    return dict(zip(NAMES, np.array(rows, dtype=np.float64).reshape(-1, len(NAMES)).T, strict=True))


def _of_query(gained: Sequence[float], gains: Mapping[int, float]) -> tuple[float, float, float, float]:
    first = next((rank for rank, gain in enumerate(gained, start=1) if gain > 0), None)
    ideal = _discounted(sorted(gains.values(), reverse=True)[:CUTOFF])
    return (
        _discounted(gained) / ideal,
        sum(gain > 0 for gain in gained[:1]) / len(gains),
        sum(gain > 0 for gain in gained) / len(gains),
        1 / first if first else 0.0,
    )


def _discounted(gained: Sequence[float]) -> float:
    return float(np.sum(np.asarray(gained) / np.log2(np.arange(2, len(gained) + 2))))


def ranks(values: Floats) -> Floats:
    """Ranks from 1, float64; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def spearman(first: Floats, second: Floats) -> float:
    """Pearson's correlation of the ranks; not a number where one of them is constant."""
    a, b = ranks(first) - (len(first) + 1) / 2, ranks(second) - (len(second) + 1) / 2
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm else float("nan")


def interval(rows: int, statistic: Callable[[Ints], float], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a statistic of drawn rows: percentiles over resamples (Efron 1979)."""
    rng = np.random.default_rng(seed)
    drawn = [statistic(rng.integers(rows, size=rows)) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return float(low), float(high)
