"""Files of rows in columns: Parquet and Arrow, spoilt bytes, and sound files with hostile schemas and values."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from fuzz.kinds.base import Kind, Mutate
from fuzz.kinds.rows import ROWS, STATS, make_jsonl, with_model
from fuzz.mutate import any_of, near_end, near_start, of_bytes, of_json, of_text
from proven import OPTION
from tiny import write_rows

FOOTER_BYTES = 1500


def table(folder: Path) -> Any:
    import pyarrow.json

    return pyarrow.json.read_json(write_rows(folder / "rows.jsonl", rows=ROWS))


def make_parquet(folder: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table(folder), folder / "rows.parquet")


def make_saved(folder: Path) -> None:
    import datasets

    make_jsonl(folder)
    rows = table(folder).to_pylist()
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")


def make_file(folder: Path) -> None:
    import pyarrow as pa

    rows = table(folder)
    with pa.ipc.new_file(folder / "rows.arrow", rows.schema) as writer:
        writer.write_table(rows)


Column = tuple[str, Any]


def hostile_columns(draw: Random) -> list[Column]:
    """A few columns, named and typed as no set of rows has them."""
    import pyarrow as pa

    far = draw.choice((2**31 - 1, -(2**31), 10**7))
    farther = draw.choice((2**63 - 1, -(2**63) + 1, 10**17))
    text = pa.array(["a", "b"] * (ROWS // 2))
    invalid = pa.array([b"a", b"caf\xe9"] * (ROWS // 2))
    offers: list[Callable[[], Any]] = [
        lambda: pa.array([far] * ROWS, pa.int32()).view(pa.date32()),
        lambda: pa.array([int(farther / 86_400_000) * 86_400_000] * ROWS, pa.int64()).view(pa.date64()),
        *(
            lambda unit=unit, zone=zone: pa.array([farther] * ROWS, pa.int64()).view(pa.timestamp(unit, zone))
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "UTC", "Mars/Olympus")
        ),
        *(
            lambda unit=unit: pa.array([farther] * ROWS, pa.int64()).view(pa.duration(unit))
            for unit in ("s", "ms", "us", "ns")
        ),
        lambda: pa.array([farther] * ROWS, pa.int64()).view(pa.time64("us")),
        lambda: pa.array([farther] * ROWS, pa.int64()),
        lambda: pa.array([float("nan"), float("inf")] * (ROWS // 2)),
        lambda: pa.array([10**30] * ROWS, pa.decimal128(38, 2)),
        lambda: pa.array([10**60] * ROWS, pa.decimal256(76, 2)),
        lambda: pa.array([b"\0\xff"] * ROWS),
        lambda: invalid.view(pa.string()),
        text.dictionary_encode,
        invalid.dictionary_encode,
        lambda: pa.nulls(ROWS),
        lambda: pa.nulls(ROWS, pa.string()),
        lambda: pa.StructArray.from_arrays([text, text], ["a", "a"]),
        lambda: pa.StructArray.from_arrays([text, text], ["role", "content"]),
        lambda: pa.StructArray.from_arrays([text], [""]),
        lambda: pa.array([[("a", 1), ("a", 2)]] * ROWS, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([[{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]] * ROWS),
        lambda: pa.ListArray.from_arrays(range(ROWS + 1), pa.StructArray.from_arrays([text, text], ["role", "role"])),
        lambda: pa.array([[[[["deep"]]]]] * ROWS),
        lambda: pa.array([[]] * ROWS, pa.list_(pa.null())),
        lambda: pa.array(["\0"] * ROWS),
        lambda: pa.array(["x" * 100_000] * ROWS),
        lambda: text.cast(pa.large_string()),
        lambda: pa.array([True, None] * (ROWS // 2)),
        lambda: pa.array([1.0] * ROWS, pa.float16()),
    ]
    names = ("instruction", "output", "input", "messages", "text", "prompt", "", "a.b", "when", "\0", "x" * 5000)
    return [(draw.choice(names), draw.choice(offers)()) for _ in range(draw.randint(1, 3))]


def with_hostile_columns(read: Callable[[Any], Any], write: Callable[[Any, Any], None]) -> Mutate:
    """A sound file, with columns that are added, or stand in the place of others."""

    def mutate(content: bytes, draw: Random) -> bytes:
        rows = read(io.BytesIO(content))
        for name, values in hostile_columns(draw):
            if name in rows.column_names and draw.random() < 0.7:
                rows = rows.set_column(rows.column_names.index(name), name, values)
            else:
                rows = rows.append_column(name, values)
        sink = io.BytesIO()
        try:
            write(rows, sink)
        except Exception:  # noqa: BLE001  what the writer refuses is no file
            return of_bytes(content, draw)
        return sink.getvalue()

    return mutate


def write_parquet(rows: Any, sink: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows, sink)


def read_parquet(source: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(source)


def write_stream(rows: Any, sink: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)


def read_stream(source: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(source).read_all()


def write_file(rows: Any, sink: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def read_file(source: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_file(source).read_all()


PARQUET = Kind(
    name="rows as Parquet",
    make=make_parquet,
    file="rows.parquet",
    mutate=any_of(of_bytes, near_end(FOOTER_BYTES), near_start(300)),
    command=(*STATS, "rows.parquet"),
)
PARQUET_VALUES = Kind(
    name="sound Parquet, hostile columns",
    make=make_parquet,
    file="rows.parquet",
    mutate=with_hostile_columns(read_parquet, write_parquet),
    command=(*STATS, "rows.parquet"),
)
PARQUET_TRAINED = Kind(
    name="sound Parquet, hostile columns, trained on",
    make=with_model(make_parquet),
    file="rows.parquet",
    mutate=with_hostile_columns(read_parquet, write_parquet),
    command=(
        "train", "--model", "model", "--data", "rows.parquet", "--output", "run", "--fresh", OPTION,
        "--set", "train.max_steps=1", "--set", "data.max_length=64",
    ),
    share=0.3,
)  # fmt: skip
ARROW_STREAM = Kind(
    name="saved data set: data-*.arrow",
    make=make_saved,
    file="saved/data-*.arrow",
    mutate=any_of(of_bytes, of_bytes, near_start(600), with_hostile_columns(read_stream, write_stream)),
    command=(*STATS, "saved"),
)
ARROW_FILE = Kind(
    name="rows as an Arrow file",
    make=make_file,
    file="rows.arrow",
    mutate=any_of(of_bytes, near_end(700), near_start(900), with_hostile_columns(read_file, write_file)),
    command=(*STATS, "rows.arrow"),
)
STATE = Kind(
    name="saved data set: state.json",
    make=make_saved,
    file="saved/state.json",
    mutate=any_of(of_json, of_json, of_text, of_bytes),
    command=(*STATS, "saved"),
)
INFO = Kind(
    name="saved data set: dataset_info.json",
    make=make_saved,
    file="saved/dataset_info.json",
    mutate=any_of(of_json, of_bytes),
    command=(*STATS, "saved"),
    share=0.2,
)
COLUMNAR = (PARQUET, PARQUET_VALUES, PARQUET_TRAINED, ARROW_STREAM, ARROW_FILE, STATE, INFO)
