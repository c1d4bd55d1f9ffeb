"""Retrieval of an adapter against its base, query by query; the base, which all runs share, is measured once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from loradock.use.embedding import beir, metrics
from loradock.use.embedding.beir import Retrieval
from loradock.use.embedding.embedder import Embedder
from loradock.use.embedding.opener import open_embedder

BASE: dict[Path, dict[str, metrics.Floats]] = {}


def against_base(run: Path, tests: Mapping[str, Path], *, instruction: str) -> dict[str, dict[str, dict[str, float]]]:
    """{test set: {measure: value, base, and the 95 % interval of the difference}}."""
    embedder = open_embedder(run)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, folder in tests.items():
        data = beir.read(folder, split="test")
        own = by_query(embedder, data, instruction)
        if folder not in BASE:
            with embedder.without_adapter():
                BASE[folder] = by_query(embedder, data, instruction)
        found[name] = {measure: compared(values, BASE[folder][measure]) for measure, values in own.items()}
    return found


def by_query(embedder: Embedder, data: Retrieval, instruction: str) -> dict[str, metrics.Floats]:
    """Each measure of each query."""
    queries = embedder.embed(data.queries, instruction=instruction, kind="query")
    passages = embedder.embed(data.passages, kind="passage")
    return metrics.retrieval(metrics.ranked(queries, passages), data.gains)


def compared(own: metrics.Floats, base: metrics.Floats) -> dict[str, float]:
    """Means, and the interval of their difference by a paired bootstrap over queries."""
    gained = np.asarray(own) - np.asarray(base)
    low, high = metrics.interval(len(gained), lambda rows: float(gained[rows].mean()))
    return {"value": float(own.mean()), "base": float(base.mean()), "low": low, "high": high}
