"""The measures are those of sentence-transformers' and scikit-learn's evaluators, and of the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sklearn.metrics import ndcg_score
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from loradock.use.embedding import metrics


def model_of(**vectors: np.ndarray) -> SentenceTransformer:
    """A real model of one-word texts: text `a3` has the vector of row 3 of `a`."""
    words = [f"{name}{row}" for name, rows in vectors.items() for row in range(len(rows))]
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}))
    weights = np.concatenate(list(vectors.values())).astype(np.float32)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")


def unit(rng: np.random.Generator, rows: int) -> np.ndarray:
    found = rng.standard_normal((rows, 8)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(3))
def test_retrieval_is_measured_as_sentence_transformers_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, passages = unit(rng, 40), unit(rng, 90)
    relevant = [set(rng.choice(90, size=rng.integers(1, 15), replace=False).tolist()) for _ in queries]
    evaluator = InformationRetrievalEvaluator(
        {f"q{i}": f"q{i}" for i in range(40)},
        {f"d{i}": f"d{i}" for i in range(90)},
        {f"q{i}": {f"d{j}" for j in each} for i, each in enumerate(relevant)},
        mrr_at_k=[10], ndcg_at_k=[10], precision_recall_at_k=[1, 10], accuracy_at_k=[1], map_at_k=[10],
        write_csv=False,
    )  # fmt: skip
    wanted = evaluator(model_of(q=queries, d=passages))
    found = metrics.retrieval(metrics.ranked(queries, passages), [dict.fromkeys(each, 1.0) for each in relevant])
    means = {name: float(values.mean()) for name, values in found.items()}
    assert means == pytest.approx({name: wanted[f"cosine_{name}"] for name in metrics.NAMES}, abs=1e-12)


def test_graded_relevance_counts_as_in_scikit_learn() -> None:
    rng = np.random.default_rng(5)
    queries, passages = unit(rng, 20), unit(rng, 50)
    gains = rng.integers(0, 4, size=(20, 50))
    given = [{int(place): float(line[place]) for place in np.flatnonzero(line)} for line in gains]
    found = metrics.retrieval(metrics.ranked(queries, passages), given)["ndcg@10"]
    assert found.mean() == pytest.approx(ndcg_score(gains, queries @ passages.T, k=10), abs=1e-12)


@pytest.mark.parametrize("values", [5, 1000])
def test_spearman_is_that_of_sentence_transformers_with_ties_averaged(values: int) -> None:
    rng = np.random.default_rng(values)
    first, second = unit(rng, 60), unit(rng, 60)
    second[:20] = second[0]  # equal similarities, too
    first[:20] = first[0]
    scores = rng.integers(0, values, size=60).astype(float)
    evaluator = EmbeddingSimilarityEvaluator(
        [f"a{i}" for i in range(60)], [f"b{i}" for i in range(60)], scores.tolist(),
        similarity_fn_names=["cosine"], write_csv=False,
    )  # fmt: skip
    wanted = evaluator(model_of(a=first, b=second))["spearman_cosine"]
    assert metrics.spearman(np.einsum("nh,nh->n", first, second), scores) == pytest.approx(wanted, abs=1e-9)


def test_ranking_in_blocks_gives_the_order_of_one_sort() -> None:
    rng = np.random.default_rng(2)
    queries, passages = unit(rng, 7), np.round(unit(rng, metrics.PASSAGES + 900), 1)  # rounded: many are equal
    found = metrics.ranked(queries, passages)
    scores = queries @ passages.T
    assert found.tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist()


def test_fewer_passages_than_ten_are_all_ranked() -> None:
    rng = np.random.default_rng(3)
    queries, passages = unit(rng, 300), unit(rng, 4)
    assert np.sort(metrics.ranked(queries, passages), axis=1).tolist() == [[0, 1, 2, 3]] * 300


def test_the_interval_of_a_mean_is_about_two_standard_errors() -> None:
    values = np.random.default_rng(0).standard_normal(400) + 1
    low, high = metrics.interval(400, lambda rows: float(values[rows].mean()))
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
