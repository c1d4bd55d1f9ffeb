"""Retrieval data sets and pairs of sentences: what is read, and what is wrong with them, by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from embedding.made import write_lines, write_retrieval, write_sentences

from loradock.errors import DataError, InputMissing, LoradockError
from loradock.use.embedding import beir
from loradock.use.embedding.evaluate import read_pairs


def test_queries_that_have_a_relevant_passage_are_read_with_titles_and_grades(tmp_path: Path) -> None:
    found = beir.read(write_retrieval(tmp_path / "set"))
    assert len(found.queries) == 10
    assert found.passages[2] == "note 2 seven horses on a bridge over the river in winter 2"
    assert found.gains[0] == {0: 1.0, 9: 1.0}
    assert found.gains[1] == {1: 1.0}
    assert found.notes == [f"1 queries are left out: {tmp_path}/set/qrels/test.tsv names no relevant passage for them"]


def test_a_passage_without_text_is_never_found_but_counts_where_it_is_relevant(tmp_path: Path) -> None:
    folder = write_retrieval(tmp_path / "set")
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": "a b"[: i * 3]} for i in range(30)])
    found = beir.read(folder)
    assert len(found.passages) == 29
    assert found.gains[0] == {29: 1.0, 8: 1.0}
    assert "1 passages have neither title nor text, and are never found" in found.notes


def appended(name: str, line: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with (folder / name).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    return spoil


def emptied(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_text("")

    return spoil


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def without_header(folder: Path) -> None:
    file = folder / "qrels" / "test.tsv"
    file.write_text(file.read_text().partition("\n")[2])


def nothing_relevant(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t0\n")


BAD = {
    "no corpus": (removed("corpus.jsonl"), InputMissing, "corpus.jsonl does not exist"),
    "no qrels": (removed("qrels/test.tsv"), InputMissing, "test.tsv does not exist"),
    "empty corpus": (emptied("corpus.jsonl"), DataError, "corpus.jsonl: there are no rows"),
    "empty queries": (emptied("queries.jsonl"), DataError, "queries.jsonl: there are no rows"),
    "no JSON": (appended("corpus.jsonl", "{"), DataError, "corpus.jsonl:31: "),
    "no id": (appended("corpus.jsonl", '{"text": "x"}'), DataError, "corpus.jsonl:31: _id is missing, or not a string"),
    "a number as id": (appended("queries.jsonl", '{"_id": 7, "text": "x"}'), DataError, "queries.jsonl:13: _id is"),
    "twice": (appended("corpus.jsonl", '{"_id": "d3", "text": "x"}'), DataError, ":31: _id 'd3' stands there twice"),
    "no text": (appended("queries.jsonl", '{"_id": "x"}'), DataError, "queries.jsonl:13: text is missing"),
    "empty query": (appended("queries.jsonl", '{"_id": "x", "text": " "}'), DataError, ":13: text is empty"),
    "unknown query": (appended("qrels/test.tsv", "x\td0\t1"), DataError, "test.tsv:15: query-id 'x' is not in queries"),
    "unknown passage": (appended("qrels/test.tsv", "q0\tx\t1"), DataError, "test.tsv:15: corpus-id 'x' is not in corp"),
    "no number": (appended("qrels/test.tsv", "q0\td0\thigh"), DataError, "test.tsv:15: score 'high' is not a number"),
    "columns": (appended("qrels/test.tsv", "q0 0 d0 1"), DataError, "test.tsv:15: 1 columns, not 3 with tabs between"),
    "no header": (without_header, DataError, r"test.tsv:1: the first line is 'q0 d0 1', not the header"),
    "nothing relevant": (nothing_relevant, DataError, "names no relevant passage: there is nothing to measure"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_retrieval_data_set_is_named(tmp_path: Path, case: str) -> None:
    spoil, kind, what = BAD[case]
    folder = write_retrieval(tmp_path / "set")
    spoil(folder)
    with pytest.raises(LoradockError) as error:
        beir.read(folder)
    assert isinstance(error.value, kind)
    assert what in str(error.value)
    assert error.value.hint


def test_pairs_of_sentences_are_read_from_csv_and_jsonl(tmp_path: Path) -> None:
    lines = read_pairs(write_sentences(tmp_path / "sts.jsonl"))
    assert len(lines.scores) == len(lines.first) == 25
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\na,b,1.5\nc,d,4\n")
    assert read_pairs(tmp_path / "sts.csv").scores.tolist() == [1.5, 4.0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sentence1,sentence2,score\na,b,high\n", "sts.csv:2: score is 'high', not a number"),
        ("sentence1,sentence2,score\na,b,nan\n", "sts.csv:2: score is 'nan', not a number"),
        ("sentence1,sentence2,score\na,,1\n", "sts.csv:2: column 'sentence2' is empty"),
        ("one,two,score\na,b,1\n", "sts.csv:2: there is no column 'sentence1', but 'one', 'two', 'score'"),
        ("sentence1,sentence2,score\na,b,1\nc,d,1\n", "all 2 scores are equal"),
        ("sentence1,sentence2,score\n", "sts.csv: there are no rows"),
    ],
)
def test_what_is_wrong_with_pairs_of_sentences_is_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "sts.csv").write_text(text)
    with pytest.raises(DataError) as error:
        read_pairs(tmp_path / "sts.csv")
    assert what in str(error.value)
