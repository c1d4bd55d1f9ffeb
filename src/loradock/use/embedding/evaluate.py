"""How good an embedder is: retrieval and similarity, of its adapter and of the base alone, with the difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loradock.data.rows import Rows
from loradock.errors import DataError
from loradock.use.embedding import metrics
from loradock.use.embedding.beir import Retrieval
from loradock.use.embedding.embedder import Embedder, Float32, Kind
from loradock.use.embedding.metrics import Floats, Ints

Progress = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Sentences with how similar people find them, float64 [pairs]."""

    first: list[str]
    second: list[str]
    scores: Floats


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of the model, and of the base where it was asked for, with the 95 % interval of the difference."""

    value: float
    base: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """What stands with queries (and with both sentences of a pair), and with passages."""

    query: str = ""
    passage: str = ""


def read_pairs(file: Path) -> Pairs:
    """Rows with `sentence1`, `sentence2` and `score`. DataError with every bad row, or where scores are all equal."""
    rows = Rows(file)
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for row in rows:
        texts = [rows.text(row, column) for column in ("sentence1", "sentence2")]
        score = _number(row.values.get("score"))
        if score is None:
            rows.refuse(row.file, row.line, f"score is {row.values.get('score')!r}, not a number")
        elif texts[0] and texts[1]:
            first.append(texts[0])
            second.append(texts[1])
            scores.append(score)
    rows.check()
    if len(set(scores)) < 2:
        what = f"{file}: all {len(scores)} scores are equal: there is no order to compare with"
        raise DataError(what, hint="give pairs that are more and less similar")
    return Pairs(first=first, second=second, scores=np.array(scores))


def retrieval(
    embedder: Embedder, data: Retrieval, asked: Instructions, *, has_base: bool, progress: Progress
) -> dict[str, Measure]:
    """nDCG@10, recall@1, recall@10 and MRR@10, means over the queries that have relevant passages."""

    def measured() -> dict[str, Floats]:
        queries = _embedded(embedder, data.queries, asked.query, "query", progress)
        passages = _embedded(embedder, data.passages, asked.passage, "passage", progress)
        return metrics.retrieval(metrics.ranked(queries, passages), data.gains)

    trained = measured()
    if not has_base:
        return {name: Measure(value=float(values.mean())) for name, values in trained.items()}
    with embedder.without_adapter():
        base = measured()
    return {name: _means(values, base[name]) for name, values in trained.items()}


def similarity(
    embedder: Embedder, data: Pairs, asked: Instructions, *, has_base: bool, progress: Progress
) -> dict[str, Measure]:
    """Spearman's correlation of the cosine similarities with the scores; queries' instruction on both sides."""

    def measured() -> Floats:
        sides = (_embedded(embedder, column, asked.query, "passage", progress) for column in (data.first, data.second))
        first, second = sides
        return np.einsum("nh,nh->n", first, second, dtype=np.float64)

    trained = measured()
    value = metrics.spearman(trained, data.scores)
    if not has_base:
        return {"spearman": Measure(value=_defined(value))}
    with embedder.without_adapter():
        base = measured()

    def gained(rows: Ints) -> float:
        scores = data.scores[rows]
        return metrics.spearman(trained[rows], scores) - metrics.spearman(base[rows], scores)

    low, high = metrics.interval(len(trained), gained)
    spearman_of_base = metrics.spearman(base, data.scores)
    return {"spearman": Measure(value=_defined(value), base=_defined(spearman_of_base), low=low, high=high)}


def _means(trained: Floats, base: Floats) -> Measure:
    """The difference of the means, paired: the same queries are drawn for both."""
    gained = trained - base
    low, high = metrics.interval(len(gained), lambda rows: float(gained[rows].mean()))
    return Measure(value=float(trained.mean()), base=float(base.mean()), low=low, high=high)


def _embedded(embedder: Embedder, texts: list[str], instruction: str, kind: Kind, progress: Progress) -> Float32:
    name = {"query": "queries", "passage": "passages"}[kind]
    return embedder.embed(texts, instruction=instruction, kind=kind, progress=lambda count: progress(name, count))


def _defined(value: float) -> float:
    if math.isnan(value):
        raise DataError("every pair has the same cosine similarity: there is no order", hint="give different sentences")
    return value


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def as_dict(measures: Mapping[str, Measure]) -> dict[str, dict[str, float]]:
    """As JSON: what is not known is left out."""
    return {
        name: {key: value for key, value in vars(measure).items() if value is not None}
        for name, measure in measures.items()
    }
