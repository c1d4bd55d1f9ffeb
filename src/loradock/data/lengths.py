"""How long rows are, in tokens: percentiles and a histogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loradock.data.prepared import Array

PERCENTILES = (50, 90, 95, 99)
BINS = 16
BINNED_PERCENTILE = 99.5


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Tokens of rows: sum, mean, and percentiles (each a number that a row has), `max` among them."""

    tokens: int
    mean: float
    percentiles: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Rows by length: bin i holds those of `edges[i]` to below `edges[i + 1]` tokens; the last one may be wider."""

    edges: tuple[int, ...]
    rows: tuple[int, ...]


def spread(values: Array) -> Spread:
    """Of tokens of rows: int32 [rows]."""
    percentiles = np.percentile(values, PERCENTILES, method="inverted_cdf")
    named_ones = {str(name): int(value) for name, value in zip(PERCENTILES, percentiles, strict=True)}
    return Spread(
        tokens=int(values.sum(dtype=np.int64)),
        mean=float(values.mean(dtype=np.float64)),
        percentiles={**named_ones, "max": int(values.max())},
    )


def histogram(lengths: Array) -> Histogram:
    """Sixteen bins or so up to nearly the longest row, and a last one for the few beyond."""
    top = int(np.percentile(lengths, BINNED_PERCENTILE, method="inverted_cdf"))
    first, longest = int(lengths.min()), int(lengths.max())
    width = max(1, -(-(top - first + 1) // BINS))
    width = width if width < 8 else -(-width // 8) * 8
    edges = np.arange(first // width * width, top + width, width)
    edges = edges if edges[-1] > top else np.append(edges, edges[-1] + width)
    edges = np.append(edges, longest + 1) if longest >= edges[-1] else edges
    rows, _ = np.histogram(lengths, bins=edges)
    return Histogram(edges=tuple(edges.tolist()), rows=tuple(rows.tolist()))
