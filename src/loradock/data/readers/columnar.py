"""Parquet files and arrow files, a batch of rows at a time; `line` is the number of the row, from 1."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

from loradock.data.readers.arrow_rows import PIECE_BYTES, PIECE_ROWS, batch_records, check_rows, check_schema
from loradock.data.readers.base import CHUNK_BYTES, Reader, Record, Unreadable
from loradock.data.readers.parquet_pages import pages_of

LARGEST_PAGE_BYTES = 256 << 20
"""A page is unpacked whole; writers make them of about 1 MiB, and more where single rows are long."""
SMALL_DICTIONARY_BYTES, LARGE_DICTIONARY_BYTES = 64 << 10, 4 << 20
"""A dictionary is looked up while it is read, since that is quicker; not above these sizes, in lists and in rows: each
of a batch's values could be the whole of it."""
SWOLLEN = 50
"""A row group that unpacks to more times its size is read row by row: nobody knows which rows are the long ones."""


def _parquet(stream: BinaryIO) -> Generator[Record, None, None]:
    yield from batch_records(_parquet_batches(stream), kind="Parquet", file_bytes=_size(stream))


def _parquet_batches(stream: BinaryIO) -> Iterator[Any]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(stream, buffer_size=CHUNK_BYTES, pre_buffer=False)
    metadata = file.metadata
    check_schema(file.schema_arrow)
    check_rows(metadata.num_rows, _size(stream))
    for number in range(metadata.num_row_groups):
        rows, dictionaries = _read_as(stream, metadata, number)
        if dictionaries:
            file = pq.ParquetFile(
                stream, metadata=metadata, read_dictionary=dictionaries, buffer_size=CHUNK_BYTES, pre_buffer=False
            )
        yield from file.iter_batches(batch_size=rows, row_groups=[number], use_threads=False)


def _read_as(stream: BinaryIO, metadata: Any, number: int) -> tuple[int, list[str]]:
    """How many rows of a row group to read at once, and the columns whose dictionaries are to be kept.

    Unreadable where a page is too large to be unpacked.
    """
    group = metadata.row_group(number)
    unpacked = packed = looked_up = 0
    kept: list[str] = []
    for index in range(group.num_columns):
        column = group.column(index)
        pages = pages_of(stream, column)
        if pages.largest_bytes > LARGEST_PAGE_BYTES:
            size, limit = pages.largest_bytes >> 20, LARGEST_PAGE_BYTES >> 20
            raise Unreadable(f"a page of column {column.path_in_schema!r} unpacks to {size} MiB; {limit} are read")
        unpacked += pages.total_bytes
        packed += column.total_compressed_size
        if column.physical_type == "BYTE_ARRAY" and metadata.schema.column(index).max_repetition_level:
            if pages.dictionary_bytes > SMALL_DICTIONARY_BYTES:  # how often a row of lists has its values, nobody says
                kept.append(column.path_in_schema)
        elif pages.dictionary_bytes > LARGE_DICTIONARY_BYTES:
            kept.append(column.path_in_schema)
        else:
            looked_up += pages.dictionary_bytes
    if unpacked > PIECE_BYTES and unpacked > SWOLLEN * packed:
        return 1, kept
    row_bytes = max(looked_up, unpacked // max(1, group.num_rows))
    return max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, row_bytes))), kept


def _arrow(stream: BinaryIO) -> Generator[Record, None, None]:
    yield from batch_records(_arrow_batches(stream), kind="arrow", file_bytes=_size(stream))


def _arrow_batches(stream: BinaryIO) -> Iterator[Any]:
    import pyarrow as pa

    is_file_format = stream.read(6) == b"ARROW1"
    stream.seek(0)
    if is_file_format:
        file = pa.ipc.open_file(stream)
        check_schema(file.schema)
        for number in range(file.num_record_batches):
            yield file.get_batch(number)
    else:
        yield from pa.ipc.open_stream(stream)


def _size(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size


PARQUET = Reader(name="Parquet", suffixes=(".parquet",), records=_parquet, is_text=False)
ARROW = Reader(name="arrow", suffixes=(".arrow",), records=_arrow, is_text=False)
