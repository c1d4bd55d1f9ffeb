"""`loradock embed`, `evaluate` and `checkpoint export --as sentence-transformers`, as processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from embedding.made import TASK, TEXTS, make_adapter, write_lines, write_retrieval, write_sentences
from sentence_transformers import SentenceTransformer
from tiny import make_llama

from loradock.use.embedding.opener import open_embedder

if TYPE_CHECKING:
    from faults.forking import Forking

DATA, USAGE, MISSING, NO_PROGRESS, MODEL = 65, 64, 66, 76, 78


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, its adapter, texts and data sets."""
    folder = tmp_path_factory.mktemp("place")
    make_adapter(folder / "adapter", base=make_llama(folder / "base"))
    write_lines(folder / "texts.jsonl", [{"text": text} for text in TEXTS])
    write_retrieval(folder / "set")
    write_sentences(folder / "sts.jsonl")
    return folder


def ended(forking: Forking, place: Path, *words: str) -> tuple[int, str]:
    command = forking.start(place, *words)
    return command.finish(), command.text()


def result(text: str) -> dict[str, object]:
    return json.loads(text[text.index("{") :])


def test_embed_writes_the_vectors_and_a_summary(forking: Forking, place: Path) -> None:
    words = ("embed", "adapter", "--input", "texts.jsonl", "--query", "--instruction", TASK, "-o", "out.npy")
    code, text = ended(forking, place, *words)
    assert code == 0, text
    embedder = open_embedder(place / "adapter")
    tokens = sum(len(embedder.document(text, instruction=TASK, kind="query").ids) for text in TEXTS)
    assert text == f"out.npy: 5 texts, {tokens} tokens, vectors of 64 numbers\n"
    wanted = embedder.embed(TEXTS, instruction=TASK, kind="query")
    np.testing.assert_allclose(np.load(place / "out.npy"), wanted, atol=1e-6)
    code, text = ended(forking, place, *words, "--raw", "--json")
    assert result(text) == {"output": "out.npy", "rows": 5, "width": 64, "tokens": tokens, "cut": 0}
    raw = np.load(place / "out.npy")
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), wanted, atol=1e-6)


def test_a_signal_leaves_the_file_that_was_there(forking: Forking, place: Path) -> None:
    write_lines(place / "many.jsonl", [{"text": TEXTS[0]}] * 20_000)
    (place / "kept.npy").write_bytes(b"before")
    words = ("embed", "adapter", "--input", "many.jsonl", "-o", "kept.npy", "--batch-tokens", "1")
    command = forking.start(place, *words)
    assert command.wait_until(lambda: list(place.glob(".kept.npy.*"))), command.text()
    command.send(signal.SIGTERM)
    assert command.finish() == NO_PROGRESS
    assert (place / "kept.npy").read_bytes() == b"before"
    assert not list(place.glob(".kept.npy.*"))


def test_evaluate_prints_each_measure_and_the_gain_over_the_base(forking: Forking, place: Path) -> None:
    words = ("evaluate", "adapter", "--retrieval", "set", "--sts", "sts.jsonl", "--instruction", TASK)
    code, text = ended(forking, place, *words)
    assert code == 0, text
    assert "10 queries, 30 passages, 25 pairs" in text
    assert "names no relevant passage for them" in text
    code, text = ended(forking, place, *words, "--base", "--json")
    assert code == 0, text
    found = result(text)
    assert {"queries": 10, "passages": 30, "pairs": 25}.items() <= found.items()
    measures = found["measures"]
    assert isinstance(measures, dict)
    assert list(measures) == ["ndcg@10", "recall@1", "recall@10", "mrr@10", "spearman"]
    for each in measures.values():
        assert each["low"] <= each["value"] - each["base"] <= each["high"]
    base = place / "base"
    (base / "embedding.json").write_bytes((place / "adapter" / "embedding.json").read_bytes())
    alone = result(ended(forking, place, "evaluate", "base", *words[2:], "--json")[1])["measures"]
    assert {name: each["value"] for name, each in alone.items()} == pytest.approx(  # pyright: ignore[reportAttributeAccessIssue]
        {name: each["base"] for name, each in measures.items()}, abs=1e-9
    )


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ("evaluate adapter", USAGE, "error: there is nothing to evaluate on"),
        ("evaluate adapter --sts gone.jsonl", MISSING, "error: gone.jsonl does not exist"),
        ("evaluate adapter --retrieval set --split dev", MISSING, "error: set/qrels/dev.tsv does not exist"),
        ("evaluate merged --sts sts.jsonl --base", USAGE, "error: merged is a whole model"),
        ("embed adapter --input texts.jsonl --column body -o x.npy", DATA, "texts.jsonl:1, texts.jsonl:2"),
        ("embed set --input texts.jsonl -o x.npy", MISSING, "error: set holds neither a run, nor an adapter"),
        ("checkpoint export adapter -o x --merge", USAGE, "error: --merge has no effect here"),
        ("checkpoint export adapter -o x --as sentence-transformers --step 3", USAGE, "which has no steps"),
        ("checkpoint export adapter -o base --as sentence-transformers", USAGE, "error: base already exists"),
    ],
)
def test_what_cannot_be_done_ends_with_its_code_and_a_hint(
    forking: Forking, place: Path, merged: Path, words: str, code: int, what: str
) -> None:
    found, text = ended(forking, place, *words.split())
    assert (found, what in text) == (code, True), text
    assert "hint: " in text
    assert not (place / "x.npy").exists()
    assert not (place / "x").exists()


@pytest.fixture(scope="module")
def merged(forking: Forking, place: Path) -> Path:
    """A run whose adapter was exported, merged."""
    words = ("-o", "merged", "--as", "sentence-transformers", "--merge", "--instruction", TASK)
    code, text = ended(forking, place, "checkpoint", "export", "adapter", *words)
    assert code == 0, text
    assert text == "merged: merged, for SentenceTransformer('merged')\n"
    return place / "merged"


def test_what_is_exported_gives_the_vectors_in_sentence_transformers(place: Path, merged: Path) -> None:
    found = SentenceTransformer(str(merged), device="cpu").encode_query(TEXTS)
    wanted = open_embedder(place / "adapter").embed(TEXTS, instruction=TASK, kind="query")
    np.testing.assert_allclose(found, wanted, atol=1e-6)
