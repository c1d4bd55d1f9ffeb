"""Vectors of a file: row i is the vector of row i, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding.made import TASK, TEXTS, make_adapter, write_lines

from loradock.errors import DataError, InputMissing, LoradockError, StorageError
from loradock.use.embedding.embedder import WINDOW_ROWS, Embedder
from loradock.use.embedding.opener import open_embedder
from loradock.use.embedding.vectors_file import Embedded, checked, embed_file

pytestmark = pytest.mark.thin(1)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Embedder:
    settings = ("embedding.query_length=40", "embedding.passage_length=48")
    return open_embedder(make_adapter(tmp_path_factory.mktemp("adapter"), *settings, base=llama))


def embedded(embedder: Embedder, file: Path, output: Path, *, column: str = "text", instruction: str = "") -> Embedded:
    count = checked(file, column=column)
    return embed_file(
        embedder, file, output, rows=count, column=column, instruction=instruction, kind="passage", is_unit=True
    )


def test_each_kind_of_file_gives_the_vectors_of_its_rows_in_order(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n", "utf-8")
    write_lines(tmp_path / "a.jsonl", [{"text": text, "other": 1} for text in TEXTS])
    (tmp_path / "a.csv").write_text("n,body\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)), "utf-8")
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet")
    wanted = embedder.embed(TEXTS, instruction=TASK)
    for name, column in (("a.txt", "text"), ("a.jsonl", "text"), ("a.csv", "body"), ("a.parquet", "text")):
        found = embedded(embedder, tmp_path / name, tmp_path / "out.npy", column=column, instruction=TASK)
        made = np.load(tmp_path / "out.npy", allow_pickle=False)
        assert made.dtype == np.float32
        np.testing.assert_array_equal(made, wanted)
        assert (found.rows, found.width, found.cut) == (5, 64, 1)
    assert sorted(each.suffix for each in tmp_path.iterdir()) == [".csv", ".jsonl", ".npy", ".parquet", ".txt"]


def test_more_rows_than_a_window_stay_in_order(tmp_path: Path, embedder: Embedder) -> None:
    texts = [f"a {i % 97}" for i in range(WINDOW_ROWS + 5)]
    (tmp_path / "a.txt").write_text("\n".join(texts), "utf-8")
    embedded(embedder, tmp_path / "a.txt", tmp_path / "out.npy")
    made = np.load(tmp_path / "out.npy")
    assert made.shape == (WINDOW_ROWS + 5, 64)
    np.testing.assert_allclose(made[-5:], embedder.embed(texts[-5:]), atol=1e-6)


BAD = {
    "a.txt": ("one\n\ntwo\n", "a.txt:2: the line is blank: row i of the result is line i of the file"),
    "a.jsonl": ('{"text": "x"}\n{"text": ""}\n{"text": 3}\n{"other": "x"}\n{', "a.jsonl:2: column 'text' is empty"),
    "a.csv": ("body\nx\n", "a.csv:2: there is no column 'text', but 'body'"),
    "b.txt": ("", "b.txt: there are no rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_named_and_nothing_is_written(tmp_path: Path, embedder: Embedder, name: str) -> None:
    text, what = BAD[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        embedded(embedder, tmp_path / name, tmp_path / "out.npy")
    assert what in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_every_bad_row_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(BAD["a.jsonl"][0])
    with pytest.raises(DataError, match="4 problems in the data") as error:
        checked(tmp_path / "a.jsonl", column="text")
    assert [problem.line for problem in error.value.problems] == [2, 3, 4, 5]


def test_columns_that_hold_text_are_named_by_the_option_that_takes_them(tmp_path: Path) -> None:
    row = {"id": 3, "the query": "x", "pos": "y", "tags": ["z"]}
    write_lines(tmp_path / "a.jsonl", [row, row])
    with pytest.raises(DataError) as error:
        checked(tmp_path / "a.jsonl", column="text")
    assert "(--column 'the query' or --column pos)" in str(error.value)
    assert error.value.hint == "do what stands in brackets, then run again"
    assert checked(tmp_path / "a.jsonl", column="the query") == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="does not exist"):
        checked(tmp_path / "a.txt", column="text")


@pytest.mark.parametrize("instruction", ["", "find " * 100])
def test_what_fails_on_the_way_leaves_the_file_that_was_there(
    tmp_path: Path, embedder: Embedder, instruction: str
) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    (tmp_path / "out.npy").write_bytes(b"before")
    with pytest.raises(LoradockError) as error:
        embed_file(
            embedder, tmp_path / "a.jsonl", tmp_path / "out.npy",
            rows=4, column="text", instruction=instruction, kind="passage",
        )  # fmt: skip
    what = "a.jsonl:1: the instruction alone has" if instruction else "changed while it was read"
    assert what in str(error.value)
    assert isinstance(error.value, DataError if instruction else StorageError)
    assert (tmp_path / "out.npy").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(LoradockError, match="folder"):
        embedded(embedder, tmp_path / "a.txt", tmp_path / "folder" / "out.npy")
