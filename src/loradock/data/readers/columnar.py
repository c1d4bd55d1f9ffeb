"""Parquet files and arrow files, a batch of rows at a time; `line` is the number of the row, from 1."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, BinaryIO

from loradock.data.readers.base import CHUNK_BYTES, Reader, Record

BATCH_ROWS = 512


def _parquet(stream: BinaryIO) -> Generator[Record, None, None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream, buffer_size=CHUNK_BYTES, pre_buffer=False)
        yield from batch_records(file.iter_batches(batch_size=BATCH_ROWS, use_threads=False))
    except (pa.ArrowException, OSError) as error:
        yield Record(None, None, f"not a readable Parquet file: {_first_line(error)}")


def _arrow(stream: BinaryIO) -> Generator[Record, None, None]:
    import pyarrow as pa

    try:
        is_file_format = stream.read(6) == b"ARROW1"
        stream.seek(0)
        if is_file_format:
            file = pa.ipc.open_file(stream)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(stream))
        yield from batch_records(batches)
    except (pa.ArrowException, OSError) as error:
        yield Record(None, None, f"not a readable arrow file: {_first_line(error)}")


def batch_records(batches: Iterable[Any]) -> Iterator[Record]:
    """Records of arrow record batches or tables, numbered from 1 over all of them."""
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for row in _rows(batch.slice(start, BATCH_ROWS)):
                number += 1
                yield Record(number, None, row) if isinstance(row, str) else Record(number, row)


def _rows(batch: Any) -> list[dict[str, Any] | str]:
    """The rows of a batch; where one holds bytes that are not UTF-8, a text that says so stands in its place."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [f"a string column holds byte 0x{error.object[error.start]:02x}, which is not UTF-8"]
        return [row for number in range(batch.num_rows) for row in _rows(batch.slice(number, 1))]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


PARQUET = Reader(name="Parquet", suffixes=(".parquet",), records=_parquet, is_text=False)
ARROW = Reader(name="arrow", suffixes=(".arrow",), records=_arrow, is_text=False)
