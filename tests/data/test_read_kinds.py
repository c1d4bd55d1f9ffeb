"""Every kind of file gives the same samples, and the real files are read whole."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

from loradock.config.sections.data import SourceConfig
from loradock.data.formats import Conversation, Sample
from loradock.data.formats.fields import RowsChange
from loradock.data.read import digest, files, read
from loradock.data.readers.arrow_sizes import hides_bytes, value_bytes
from loradock.data.remedies import command_on
from loradock.data.sources import samples
from loradock.errors import InputMissing, Problem

pytestmark = pytest.mark.thin(3)

DATA = Path(__file__).parents[3] / "shared" / "data"
ROWS = [
    {"instruction": "Add.", "input": "2 and 2", "output": "4"},
    {
        "instruction": 'Say \u201chei\u201d,\nthen "bye".',
        "input": "",
        "output": "hei\r\n\U0001f44b e\u0301 \u4f60\u597d",
    },
    {"instruction": "Tab\there", "input": "a,b;c", "output": "  spaces around  "},
] * 400


def compress(plain: bytes, suffix: str) -> bytes:
    """`plain` as a .gz or .zst file holds it."""
    if suffix == ".gz":
        return gzip.compress(plain)
    import zstandard

    return zstandard.ZstdCompressor().compress(plain)


def delimited(delimiter: str) -> bytes:
    """ROWS as CSV."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["instruction", "input", "output"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def lines(rows: list[dict[str, str]] = ROWS, *, end: str = "\n") -> bytes:
    """Rows as JSONL."""
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


KINDS: dict[str, bytes] = {
    "compact.json": json.dumps(ROWS, separators=(",", ":")).encode(),
    "indented.json": json.dumps(ROWS, indent=1, ensure_ascii=False).encode(),
    "bom.json": b"\xef\xbb\xbf" + json.dumps(ROWS).encode(),
    "rows.jsonl": lines(),
    "rows.ndjson": lines(),
    "crlf.jsonl": b"\xef\xbb\xbf" + lines(end="\r\n\r\n"),
    "no_last_line_end.jsonl": lines().rstrip(),
    "rows.csv": delimited(","),
    "bom.csv": b"\xef\xbb\xbf" + delimited(","),
    "rows.tsv": delimited("\t"),
    "excel.csv": b"\xef\xbb\xbf" + delimited(";"),
    "blank_first.csv": b"\r\n" + delimited(";"),
    "tabs.csv": delimited("\t"),
    "commas.tsv": delimited(","),
    "semicolons.tsv": delimited(";"),
}


def loaded(path: Path, **config: object) -> list[Sample]:
    """The samples of a source that has no problems."""
    found = list(samples(SourceConfig.model_validate({"path": str(path), **config})))
    assert not [entry for _, entry in found if isinstance(entry, Problem)]
    return [entry for _, entry in found if not isinstance(entry, Problem)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    path = tmp_path_factory.mktemp("expected") / "rows.jsonl"
    path.write_bytes(lines())
    found = loaded(path)
    assert len(found) == len(ROWS)
    first = found[0]
    assert isinstance(first, Conversation)
    assert [(turn.role, turn.content) for turn in first.messages] == [("user", "Add.\n\n2 and 2"), ("assistant", "4")]
    return found


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", KINDS)
def test_every_text_kind_plain_or_compressed_gives_the_same_samples(
    name: str, suffix: str, tmp_path: Path, expected: list[Sample]
) -> None:
    path = tmp_path / (name + suffix)
    path.write_bytes(compress(KINDS[name], suffix) if suffix else KINDS[name])
    assert loaded(path) == expected


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_of_several_parts_is_read_to_its_end(
    suffix: str, tmp_path: Path, expected: list[Sample]
) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(compress(lines(ROWS[:500]), suffix) + compress(lines(ROWS[500:]), suffix))
    assert loaded(path) == expected


def test_parquet_and_every_arrow_layout_give_the_same_samples(tmp_path: Path, expected: list[Sample]) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    with pa.ipc.new_file(tmp_path / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    saved = datasets.Dataset(table)
    saved.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    datasets.DatasetDict({"train": saved.select(range(5)), "test": saved}).save_to_disk(str(tmp_path / "splits"))
    assert loaded(tmp_path / "rows.parquet") == expected
    assert loaded(tmp_path / "rows.arrow") == expected
    assert loaded(tmp_path / "saved") == expected
    assert loaded(tmp_path / "splits") == expected[:5]
    assert loaded(tmp_path / "splits", split="test") == expected
    records = list(read(SourceConfig(path=str(tmp_path / "saved"))))
    assert [record.line for record in records] == list(range(1, len(ROWS) + 1))
    with pytest.raises(InputMissing, match="has no split 'dev'; it has test, train"):
        loaded(tmp_path / "splits", split="dev")
    files(SourceConfig(path=str(tmp_path / "saved")))[1].unlink()
    with pytest.raises(InputMissing, match="is incomplete"):
        loaded(tmp_path / "saved")


@pytest.mark.parametrize("name", ["compact.json", "indented.json", "rows.csv", "crlf.jsonl"])
def test_a_record_carries_the_line_on_which_it_starts(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(KINDS[name])
    text = KINDS[name].decode()
    numbers = [record.line for record in read(SourceConfig(path=str(path)))]
    if name == "compact.json":
        assert numbers == [-number for number in range(1, len(ROWS) + 1)]
    elif name == "indented.json":
        assert numbers == [number for number, line in enumerate(text.split("\n"), 1) if line.strip() == "{"]
    elif name == "crlf.jsonl":
        assert numbers == list(range(1, 2 * len(ROWS), 2))
    else:
        starts = [number for number, line in enumerate(text.split("\n"), 1) if line.startswith(("Add.", '"Say', "Tab"))]
        assert numbers == starts


def test_rows_longer_than_the_window_are_read_whole(tmp_path: Path) -> None:
    rows = [{"text": "x\u00e9\n" * size} for size in (1, 3 * 2**18, 5, 2**21, 1)]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")
    records = list(read(SourceConfig(path=str(path))))
    assert [record.row for record in records] == rows
    assert [record.line for record in records] == [2, 5, 8, 11, 14]


def test_a_row_may_end_anywhere_relative_to_the_window(tmp_path: Path) -> None:
    for padding in range(2**20 - 60, 2**20 + 4):
        path = tmp_path / "rows.json"
        path.write_bytes(b"[" + b" " * padding + b'{"a": 12, "b": true, "c": "\\u00e9"}, {"a": null}]')
        assert [record.row for record in read(SourceConfig(path=str(path)))] == [
            {"a": 12, "b": True, "c": "\u00e9"},
            {"a": None},
        ]


@pytest.mark.parametrize("name", KINDS)
def test_a_reading_that_stops_early_leaves_no_file_open(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(KINDS[name])
    before = len(os.listdir("/proc/self/fd"))
    records = read(SourceConfig(path=str(path)))
    next(records)
    del records
    assert len(os.listdir("/proc/self/fd")) == before


def test_mapped_fields_read_the_named_columns(tmp_path: Path, expected: list[Sample]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines([{"q": row["instruction"], "c": row["input"], "a": row["output"]} for row in ROWS]))
    assert loaded(path, fields={"instruction": "q", "input": "c", "output": "a"}) == expected


def test_the_digest_is_that_of_the_content_and_changes_with_any_byte(tmp_path: Path) -> None:
    path, other = tmp_path / "rows.jsonl", tmp_path / "copy.jsonl"
    path.write_bytes(lines())
    other.write_bytes(lines())
    source = SourceConfig(path=str(path))
    assert digest(source) == hashlib.sha256(lines()).hexdigest() == digest(SourceConfig(path=str(other)))
    path.write_bytes(lines().replace(b"2 and 2", b"2 and 3", 1))
    assert digest(source) != digest(SourceConfig(path=str(other)))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("commonsense_5k.json", 5000),
        ("arc-easy_test_500.json", 500),
        ("boolq_test_500.json", 500),
        ("openbookqa_test_500.json", 500),
        ("gritlm/toy_data_generative.jsonl", 10),
    ],
)
def test_the_real_files_are_read_whole(name: str, rows: int) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"shared data absent: {name}")
    text = path.read_text("utf-8")
    plain = json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.splitlines() if line]
    assert len(plain) == rows
    assert [record.row for record in read(SourceConfig(path=str(path)))] == plain
    for sample, row in zip(loaded(path), plain, strict=True):
        assert isinstance(sample, Conversation)
        question, answer = row["text"] if "text" in row else (row["instruction"], row["output"])
        assert [(turn.role, turn.content) for turn in sample.messages] == [("user", question), ("assistant", answer)]


@pytest.mark.parametrize("kind", ["string_view", "large_string", "string"])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_texts_that_point_into_shared_buffers_are_read_as_others(kind: str, suffix: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    type = getattr(pa, kind)()
    texts = [f"{number} {'long ' * (number % 9)}" for number in range(600)]
    columns = {"instruction": pa.array(texts, type), "output": pa.array([*texts[:-1], "\u20ac"], type)}
    table, file = pa.table(columns), tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(file, table.schema) as stream:
            stream.write_table(table)
    found = loaded(file)
    assert len(found) == 600
    assert isinstance(found[-1], Conversation)
    assert found[-1].messages[-1].content == "\u20ac"


def test_turns_whose_texts_point_into_shared_buffers_are_read(tmp_path: Path) -> None:
    import pyarrow as pa

    turn = pa.struct([("role", pa.string_view()), ("content", pa.string_view())])
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 40}]
    table = pa.table({"messages": pa.array([turns] * 9, pa.list_(turn))})
    with pa.ipc.new_file(tmp_path / "rows.arrow", table.schema) as stream:
        stream.write_table(table)
    found = loaded(tmp_path / "rows.arrow")
    assert len(found) == 9
    assert all(isinstance(each, Conversation) and each.messages[1].content == "b" * 40 for each in found)


@pytest.mark.parametrize("kind", ["string_view", "binary_view"])
def test_a_text_that_points_into_a_shared_buffer_counts_as_long_as_it_is(kind: str) -> None:
    """Else rows of gigabytes, which point to one text, are spelt out together."""
    import pyarrow as pa

    texts = [b"", b"short", b"twelve bytes", b"x" * 13, None, b"y" * 4000]
    plain = pa.array([text if kind == "binary_view" or text is None else text.decode() for text in texts])
    for start in range(len(texts)):
        views = plain.cast(kind).slice(start)
        assert np.array_equal(value_bytes(views), value_bytes(plain.slice(start)))
    assert hides_bytes(pa.list_(getattr(pa, kind)()))
    assert not hides_bytes(pa.list_(pa.string()))


@pytest.mark.parametrize(
    ("name", "argument"), [("rows.csv", ""), ("excel.csv", "sep=';', "), ("rows.tsv", "sep='\\t', ")]
)
def test_a_command_of_a_hint_reads_a_table_by_its_own_separator(name: str, argument: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(KINDS[name])
    command = command_on(str(path), RowsChange(column="input", jq="", method="remove_columns([COLUMN])"))
    (_, _, program) = shlex.split(command)
    assert f"read_csv({str(path)!r}, {argument}dtype=str" in program
