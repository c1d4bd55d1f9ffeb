"""Files that are made to break, block or swallow a reader: each ends with its problem, soon, and in little memory."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loradock.config.sections.data import SourceConfig
from loradock.data.read import files, read
from loradock.data.readers import columnar
from loradock.data.readers.parquet_pages import pages_of
from loradock.data.sources import samples
from loradock.errors import DataError, InputMissing, Problem

pytestmark = pytest.mark.thin(6)

MOST_SECONDS = 20
MOST_BYTES = 1 << 30
TEXTS = pa.array(["a", "b"])


def problems(path: Path) -> list[str]:
    """What is wrong with the rows of a source, with the row's number."""
    found = samples(SourceConfig(path=str(path)))
    return [f"{each.line}: {each.what}" for _, each in found if isinstance(each, Problem)]


def write(path: Path, table: Any) -> Path:
    """The table as a Parquet file, or as an Arrow file or stream, by its name."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (pa.array([0, 2**31 - 1], pa.int32()).view(pa.date32()), "column 'when' holds a date32[day]"),
        (pa.array([0, 2**62], pa.int64()).view(pa.timestamp("us")), "column 'when' holds a timestamp[us]"),
        (pa.array([0, 0], pa.int64()).view(pa.timestamp("us", "Mars/Olympus")), "column 'when' holds a timestamp"),
        (pa.array([0, 2**62], pa.int64()).view(pa.duration("s")), "column 'when' holds a duration[s]"),
    ],
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_date_that_python_has_no_word_for_costs_its_row(values: Any, what: str, suffix: str, tmp_path: Path) -> None:
    table = pa.table({"instruction": TEXTS, "output": TEXTS, "when": values})
    found = problems(write(tmp_path / f"rows{suffix}", table))
    assert found
    assert found[-1].startswith(f"2: {what}")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_column_that_stands_twice_is_refused_by_name(suffix: str, tmp_path: Path) -> None:
    table = pa.Table.from_arrays([TEXTS, TEXTS, TEXTS], names=["instruction", "output", "output"])
    (found,) = problems(write(tmp_path / f"rows{suffix}", table))
    assert "it has column 'output' twice" in found


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_field_that_objects_have_twice_is_refused_by_name(suffix: str, tmp_path: Path) -> None:
    turns = pa.StructArray.from_arrays([TEXTS, TEXTS, TEXTS], ["role", "content", "content"])
    table = pa.table({"messages": pa.ListArray.from_arrays([0, 1, 2], turns)})
    (found,) = problems(write(tmp_path / f"rows{suffix}", table))
    assert "column 'messages': its objects have field 'content' twice" in found


def offsets(*values: int) -> Any:
    return pa.array(values, pa.int32()).buffers()[1]


@pytest.mark.parametrize("array", [
    pa.Array.from_buffers(pa.string(), 2, [None, offsets(0, 10**9, 1), pa.py_buffer(b"ab")]),
    pa.ListArray.from_buffers(pa.list_(pa.string()), 2, [None, offsets(0, 10**8, 2)], children=[TEXTS]),
    pa.DictionaryArray.from_arrays(pa.array([0, 10**9], pa.int32()), TEXTS, safe=False),
])  # fmt: skip
def test_arrow_offsets_that_lead_elsewhere_are_refused_before_they_are_followed(array: Any, tmp_path: Path) -> None:
    found = problems(write(tmp_path / "rows.arrow", pa.Table.from_arrays([array, TEXTS], names=["text", "other"])))
    assert ["column 'text' is broken after row 0" in each for each in found] == [True]


@pytest.mark.parametrize("state", [
    b"{", b"\xff", b"[" * 100_000, b"7", b"{}", b'{"_data_files": 3}', b'{"_data_files": [3]}',
    b'{"_data_files": [{"filename": 3}]}', b'{"_data_files": [{"filename": "../rows.arrow"}]}',
    b'{"_data_files": [{"filename": "/etc/passwd"}]}', b'{"_data_files": [{"filename": "\\ud800"}]}',
    b'{"_data_files": [{"filename": "%s"}]}' % (b"x" * 5000), b'{"_data_files": [{"filename": "\\u0000"}]}',
    b'{"_data_files": [{"filename": "rows.arrow"}, {"filename": "rows.arrow"}]}',
])  # fmt: skip
def test_a_broken_state_of_a_saved_data_set_is_told_by_its_file(state: bytes, tmp_path: Path) -> None:
    write(tmp_path / "rows.arrow", pa.table({"instruction": TEXTS, "output": TEXTS}))
    (tmp_path / "state.json").write_bytes(state)
    with pytest.raises(DataError, match=r"state\.json") as caught:
        files(SourceConfig(path=str(tmp_path)))
    assert caught.value.hint


@pytest.mark.parametrize("value", ["1e400", "-1e400", "9" * 4000, "9" * 5000, "1E+999999999", '"\\ud800"'])
def test_an_extreme_number_beside_what_is_trained_breaks_nothing(value: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"instruction": "a", "output": "b", "score": {value}}}\n' * 2)
    assert all("score" in each or "not usable JSON" in each for each in problems(path))
    done, _, _, words = ended(path)
    assert done in (0, 65), words


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.json.gz"])
def test_what_is_no_regular_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    pipe, other = tmp_path / name, tmp_path / f"socket-{name}"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(other))
        for path in (pipe, other):
            with pytest.raises(DataError, match="is a pipe or a device"):
                list(read(SourceConfig(path=str(path))))


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "rows.jsonl")
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    with pytest.raises(DataError, match="is a pipe or a device"):
        list(read(SourceConfig(path=str(tmp_path / "rows.jsonl"))))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_path_that_no_file_can_have_is_missing(name: str) -> None:
    with pytest.raises(InputMissing):
        files(SourceConfig.model_construct(path=name))  # the configuration refuses the first; a saved set may name it


def test_the_pages_of_a_parquet_file_tell_what_they_unpack_to(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", pa.table({"text": ["x" * 1_000_000] * 3}))
    with path.open("rb") as stream:
        found = pages_of(stream, pq.ParquetFile(path).metadata.row_group(0).column(0))
    assert (found.largest_bytes, found.dictionary_bytes) == (1_000_004, 1_000_004)
    assert path.stat().st_size < 60_000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_the_pages_of_honest_files_are_all_counted(version: Any, codec: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    turns = [[{"role": "user", "content": f"{number} " * 9}] * (number % 5) for number in range(9000)]
    table = pa.table({"messages": turns, "text": [f"{number} " * 50 for number in range(9000)]})
    options = {"compression": codec, "data_page_version": version, "data_page_size": 5000, "row_group_size": 4000}
    pq.write_table(table, path, **options)
    metadata = pq.ParquetFile(path).metadata
    with path.open("rb") as stream:
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                headers = column.total_uncompressed_size - pages_of(stream, column).total_bytes
                assert 0 < headers < 100 * (2 + column.total_uncompressed_size // 4000)
    assert len(list(read(SourceConfig(path=str(path))))) == 9000


def test_a_row_group_without_rows_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"instruction": TEXTS, "output": TEXTS})
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (table, table.slice(0, 0), table):
            writer.write_table(part)
    assert problems(path) == []
    assert len(list(read(SourceConfig(path=str(path))))) == 4


def test_a_parquet_page_that_is_too_large_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows.parquet", pa.table({"text": ["x" * 3_000_000]}))
    monkeypatch.setattr(columnar, "LARGEST_PAGE_BYTES", 1 << 20)
    assert ["a page of column 'text' unpacks to 2 MiB; 1 are read" in each for each in problems(path)] == [True]


def test_long_prompts_that_all_rows_share_are_no_bomb(tmp_path: Path) -> None:
    shared = "Read the rules of the house. " * 1000
    table = pa.table({"instruction": [shared] * 5000, "output": [str(number) for number in range(5000)]})
    path = write(tmp_path / "rows.parquet", table)
    assert 5000 * len(shared) > 1000 * path.stat().st_size
    assert problems(path) == []


@pytest.mark.parametrize("nest", [lambda texts: texts, lambda texts: pa.ListArray.from_arrays([0, 1, 2], texts)])
def test_rows_of_a_dictionary_are_those_of_plain_values(
    nest: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "SMALL_DICTIONARY_BYTES", 0)
    monkeypatch.setattr(columnar, "LARGE_DICTIONARY_BYTES", 0)
    path = write(tmp_path / "rows.parquet", pa.table({"text": nest(TEXTS)}))
    assert [record.row for record in read(SourceConfig(path=str(path)))] == pq.read_table(path).to_pylist()


def test_more_rows_than_bits_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", pa.table({"text": pa.nulls(3_000_000, pa.string())}))
    assert "it claims 3,000,000 rows or more" in problems(path)[0]


def test_a_list_without_end_is_a_row_that_is_too_long(tmp_path: Path) -> None:
    count = 20_000_000
    endless = pa.ListArray.from_arrays([0, count], pa.nulls(count))
    found = problems(write(tmp_path / "rows.arrow", pa.table({"text": endless})))
    assert "the row is longer than 64 MiB" in found[0]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.txt"])
def test_a_million_blank_lines_end_the_file_and_fewer_do_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    head = {"rows.csv": "instruction,output\na,b", "rows.txt": "a"}.get(name, '{"instruction": "a", "output": "b"}')
    last = head.splitlines()[-1]
    path.write_text(head + "\n" * 900_000 + last + "\n")
    assert problems(path) == []
    path.write_text(head + "\n" * 1_100_000 + last + "\n")
    assert ["1,000,000 blank lines follow" in each for each in problems(path)] == [True]


def test_what_unpacks_to_two_hundred_times_its_size_is_to_be_unpacked_by_hand(tmp_path: Path) -> None:
    row = b'{"instruction": "a", "output": "%s"}\n' % (b"b" * 1000)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(row * 35_000))
    assert problems(path) == []
    path.write_bytes(gzip.compress(row * 90_000))
    assert "unpack to more than 200 times as many" in problems(path)[-1]


def of_columns(path: Path) -> Path:
    names = ["instruction", "output", *(f"c{number}" for number in range(100_000 - 2))]
    row = ",".join(["x"] * len(names))
    path = path / "rows.csv"
    path.write_text("\n".join([",".join(names), *[row] * 10]) + "\n")
    return path


def of_columns_that_fit_nothing(path: Path) -> Path:
    path = path / "rows.csv"
    names = [f"c{number}" for number in range(100_000)]
    path.write_text("\n".join([",".join(names), *[",".join(["x"] * len(names))] * 10]) + "\n")
    return path


def of_newlines(path: Path) -> Path:
    path = path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * (64 << 20)) * 48)
    return path


def of_spaces(path: Path) -> Path:
    path = path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (64 << 20)) * 48)
    return path


def of_a_dictionary(path: Path) -> Path:
    path = path / "rows.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), pa.array(["x" * (8 << 20)]))
    pq.write_table(pa.table({"instruction": texts, "output": texts}), path)
    return path


def of_a_dictionary_in_lists(path: Path) -> Path:
    path = path / "rows.parquet"
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), pa.array(["x" * (1 << 20)]))
    turns = pa.StructArray.from_arrays([texts, texts], ["role", "content"])
    pq.write_table(pa.table({"messages": pa.ListArray.from_arrays([0, 4000], turns)}), path)
    return path


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (of_columns, 0, "and 99,948 more"),
        (of_columns_that_fit_nothing, 65, "and 99,970 more"),
        (of_newlines, 65, "1,000,000 blank lines"),
        (of_spaces, 65, "unpack to more than 200 times"),
        (of_a_dictionary, 65, "unpack to more than 200 times"),
        (of_a_dictionary_in_lists, 65, "the row is longer than 64 MiB"),
    ],
)
def test_a_bomb_ends_within_20_seconds_and_1_gib(
    make: Callable[[Path], Path], code: int, said: str, tmp_path: Path
) -> None:
    found, seconds, size, words = ended(make(tmp_path))
    assert (found, said in words) == (code, True), words[-2000:]
    assert seconds < MOST_SECONDS
    assert size < MOST_BYTES


def ended(path: Path) -> tuple[int, float, int, str]:
    """`data stats` of a file: exit code, CPU seconds, peak bytes, and what it said."""
    command = [sys.executable, "-m", "loradock", "data", "stats", "--data", str(path)]
    with (path.parent / "words").open("w+b") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until, size = time.monotonic() + 10 * MOST_SECONDS, 0
        while not (done := os.wait4(process.pid, os.WNOHANG))[0]:
            size = max(size, peak_bytes(process.pid))
            time.sleep(0.02)
            if time.monotonic() > until:
                process.kill()
        process.returncode = os.waitstatus_to_exitcode(done[1])
        log.seek(0)
        words = log.read().decode()
    seconds = done[2].ru_utime + done[2].ru_stime
    sys.stdout.write(f"{path.name}: {process.returncode}, {seconds:.1f} CPU s, {size >> 20} MiB\n")  # pytest -s
    return process.returncode, seconds, size, words


def peak_bytes(process: int) -> int:
    """VmHWM, which starts again with a program; ru_maxrss would carry that of the test run into it."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
