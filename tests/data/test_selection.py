"""Rows that a run takes: no copies, none too short; counted, told and recorded, and nothing of what is left changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from data.measured import MACHINE
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from loradock import demo
from loradock.cli import cli
from loradock.config.load import load
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data import selection
from loradock.data.corpus import prepare_corpus
from loradock.data.prepare import prepare
from loradock.data.prepared import Prepared
from loradock.data.select import split
from loradock.data.selection import Selection, earliest
from loradock.errors import DataError

pytestmark = pytest.mark.thin(1)

BASE = Path(demo.__file__).parent / "base"
Rows = list[dict[str, Any]]


def pair(number: int, answer: str = "") -> dict[str, Any]:
    return {"prompt": f"What is {number}?", "completion": answer or f" It is {number}."}


FIRST: Rows = [pair(1), pair(2), pair(1), pair(3), {"text": "What is 4? It is 4."}, pair(2, " It is not.")]
SECOND: Rows = [pair(3), pair(5), pair(1), {**pair(5), "id": 7}]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(BASE)


def written(file: Path, rows: Rows) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def prepared(cache: Path, tokenizer: PreTrainedTokenizerBase, *files: Path, workers: int = 1) -> Prepared:
    data = DataConfig(sources=tuple(SourceConfig(path=str(file)) for file in files))
    return prepare(data, tokenizer=tokenizer, cache_dir=cache, workers=workers)


def two_files(folder: Path) -> list[Path]:
    first = [row for row in FIRST if "text" not in row]
    return [written(folder / "first.jsonl", first), written(folder / "second.jsonl", SECOND)]


@pytest.mark.parametrize(("workers", "block"), [(1, 1), (1, 16), (1, 1 << 22), (2, 1 << 22)])
def test_of_equal_rows_the_first_stays_over_all_sources_whatever_prepares_them(
    workers: int, block: int, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "BLOCK_TOKENS", block)
    found = prepared(tmp_path / "cache", tokenizer, *two_files(tmp_path), workers=workers)
    left = Selection.of(found, deduplicate="exact")
    by_content = [tuple(map(bytes, found.row(row))) for row in range(found.rows)]
    assert left.samples.tolist() == [row for row in range(9) if by_content.index(by_content[row]) == row]
    assert (left.samples.tolist(), left.copies) == ([0, 1, 3, 4, 6], 4)
    assert left.copy_places[0].endswith("first.jsonl:3 = " + str(tmp_path / "first.jsonl:1"))
    assert Selection.of(found).samples.tolist() == list(range(9)), "off by default"


def test_the_same_text_with_another_mask_is_no_copy(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    rows = [{"prompt": "one two", "completion": " three"}, {"prompt": "one", "completion": " two three"}]
    found = prepared(tmp_path / "cache", tokenizer, written(tmp_path / "rows.jsonl", rows))
    assert found.row(0)[0].tolist() == found.row(1)[0].tolist()
    assert Selection.of(found, deduplicate="exact").copies == 0


def test_both_halves_of_a_digest_count_and_the_earliest_place_is_given() -> None:
    digests = np.array([[5, 1], [5, 2], [4, 1], [5, 2], [5, 1], [5, 2]], dtype=np.uint64)
    assert earliest(digests).tolist() == [0, 1, 2, 1, 0, 1]


def test_copies_are_removed_before_rows_are_held_out(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    rows = [pair(number) for number in range(20) for _ in range(5)]
    found = prepared(tmp_path / "cache", tokenizer, written(tmp_path / "rows.jsonl", rows))
    left = Selection.of(found, deduplicate="exact").samples
    train, judged = split(found, validation=0.5, seed=0, samples=left)
    contents = [{found.row(int(row))[0].tobytes() for row in part} for part in (train, judged)]
    assert (len(train), len(judged)) == (10, 10)
    assert not contents[0] & contents[1]
    unfiltered = [each.tolist() for each in split(found, validation=0.3, seed=4)]
    assert unfiltered == [each.tolist() for each in split(found, validation=0.3, seed=4, samples=np.arange(100))]


def test_rows_of_fewer_tokens_are_left_out_up_to_the_allowed_share(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    rows = [pair(number, " word" * (3 + number)) for number in range(20)]
    found = prepared(tmp_path / "cache", tokenizer, written(tmp_path / "rows.jsonl", rows))
    lengths = np.diff(found.offsets)
    limit = int(np.sort(lengths)[4])
    left = Selection.of(found, min_tokens=limit, max_dropped=0.2)
    assert (left.short, left.samples.tolist()) == (4, np.flatnonzero(lengths >= limit).tolist())
    with pytest.raises(DataError, match=r"4 of 20 rows \(20.0%\) have fewer than") as refused:
        Selection.of(found, min_tokens=limit, max_dropped=0.1)
    assert str(refused.value.hint).endswith("--set data.max_dropped=0.2")
    with pytest.raises(DataError, match="20 of 20 rows") as none:
        Selection.of(found, min_tokens=10_000, max_dropped=1.0)
    assert "max_dropped=" not in str(none.value.hint), "nothing would be left"


def test_pairs_are_known_by_all_their_documents_and_what_each_is(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    texts = {"query": "what is one", "pos": ["it is one"], "neg": ["it is two"]}
    rows = [texts, {**texts, "query": "what is two"}, texts]
    rows += [{**texts, "pos": ["it is one", "it is two"], "neg": []}, {**texts, "neg": ["it is 3"]}]
    config = RunConfig.model_validate(
        {
            "objective": "embedding",
            "data": {
                "sources": [{"path": str(written(tmp_path / "pairs.jsonl", rows))}],
                "cache": str(tmp_path / "cache"),
                "deduplicate": "exact",
            },
        }
    )
    corpus = prepare_corpus(config, tokenizer=tokenizer, max_length=64, facts=MACHINE)
    assert corpus.leading.train.chosen.tolist() == [0, 1, 3, 4]
    assert corpus.as_dict()["duplicate_pairs"] == 1
    assert any("exact copies of earlier rows: 1 left out" in note for note in corpus.notes)


def asked(verb: str, *words: str, folder: Path) -> list[str]:
    sets = [word for key in (*words, f"data.cache={folder / 'cache'}") for word in ("--set", key)]
    return ["data", verb, "--model", str(BASE), *sets]


def test_statistics_and_rows_say_what_is_left_out_and_why(tmp_path: Path) -> None:
    rows = [pair(number) for number in range(30)] + [pair(3), pair(3), pair(4), {"prompt": "A", "completion": "B"}]
    file = written(tmp_path / "rows.jsonl", rows)
    tokens = len(AutoTokenizer.from_pretrained(BASE)("What is 4? It is 4.").input_ids)
    sets = ("data.deduplicate=exact", f"data.min_tokens={tokens - 2}", "data.validation=3")
    done = CliRunner().invoke(cli, [*asked("stats", *sets, folder=tmp_path), "--data", str(file), "--json"])
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    assert (told["rows"], told["short_rows"], told["duplicate_rows"]) == (34, 1, 3)
    assert (told["train_rows"], told["validation_rows"]) == (27, 3)
    assert (told["sources"][0]["held_out"], told["sources"][0]["left_out"]) == (3, 4)
    for verb in ("stats", "show"):
        done = CliRunner().invoke(cli, [*asked(verb, *sets, folder=tmp_path), "--data", str(file)])
        assert done.exit_code == 0, done.exception
        said = done.stderr.replace("\n", " ")
        assert f"exact copies of earlier rows: 3 left out (data.deduplicate exact): {file}:31 = {file}:4" in said
        assert f"rows of fewer than {tokens - 2} tokens: 1 left out (data.min_tokens)" in said
    table = CliRunner().invoke(cli, [*asked("stats", *sets, folder=tmp_path), "--data", str(file)]).stdout
    assert "left out: 1 (data.min_tokens), 3 (data.deduplicate)" in table


def test_a_key_that_an_objective_has_no_use_for_is_told(tmp_path: Path) -> None:
    file = written(tmp_path / "pairs.jsonl", [{"query": "a", "pos": "b"}])
    loaded = load(
        None,
        overrides=["objective=embedding", "data.min_tokens=5", f"data.sources={file}", f"model.name={BASE}"],
        shortcuts={},
    )
    assert any("data.min_tokens has no effect" in str(each) for each in loaded.warnings), loaded.warnings


def test_preference_pairs_are_copies_where_both_answers_are_and_short_where_one_is(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    def row(chosen: str, rejected: str) -> dict[str, Any]:
        return {"prompt": "Which?", "chosen": chosen, "rejected": rejected}

    long = "a longer answer, of many words, that says it"
    rows = [row(long, f"{long} not"), row(long, f"{long} twice"), row(long, f"{long} not"), row(long, "no")]
    file = written(tmp_path / "preferences.jsonl", rows)
    data = {"sources": [{"path": str(file)}], "cache": str(tmp_path / "cache"), "deduplicate": "exact"}
    data |= {"min_tokens": 12, "max_dropped": 1.0}
    config = RunConfig.model_validate({"objective": "preference", "data": data})
    corpus = prepare_corpus(config, tokenizer=tokenizer, max_length=64, facts=MACHINE)
    assert corpus.leading.train.chosen.tolist() == [0, 1]
    content = corpus.as_dict()
    assert (content["short_pairs"], content["duplicate_pairs"]) == (1, 1)
