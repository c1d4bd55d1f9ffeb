"""Batches of Arrow arrays to rows of Python: in pieces of bounded size, and only what is sound.

A batch from outside is small and says that it is large: a dictionary of one long text that every row points to, lists
of nulls without end. What its values take once they are spelt out is reckoned before they are.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from loradock.data.readers.arrow_sizes import Sizes, hides_bytes, sum_of, value_bytes
from loradock.data.readers.base import MAX_ROW_BYTES, Expansion, Record, Unreadable
from loradock.text.terminal import first_line

TOOLS = frozenset(("tools", "functions", "tool_calls", "function_call"))
"""Keys of definitions and calls of tools."""
PIECE_ROWS = 512
PIECE_BYTES = 64 << 20
"""Values spelt out at a time."""
LONG_ROW_BYTES = 256 << 10
FEW_ROWS = 1 << 20
ROWS_PER_BYTE = 8
OF_THE_FILE = frozenset((None, errno.EINVAL, errno.EOVERFLOW))
"""Of an OSError: pyarrow says so of a broken file, or a seek to where a broken file points. Others are the disk's."""


@contextmanager
def reading(kind: str) -> Iterator[None]:
    """Around what pyarrow does with a file from outside: Unreadable for what it raises, but OSError for the disk."""
    try:
        yield
    except Unreadable:
        raise
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        raise Unreadable(f"not a readable {kind} file: {first_line(error)}") from error
    except Exception as error:  # a broken file makes pyarrow raise its own, and ValueError, KeyError, MemoryError ...
        raise Unreadable(f"not a readable {kind} file: {first_line(error)}") from error


def check_schema(schema: Any) -> None:
    """Unreadable where a name stands twice: a row would hold one of the two."""
    doubled = [name for name, count in Counter(schema.names).items() if count > 1]
    found = [f"it has column {name!r} twice" for name in doubled]
    found += [f"column {field.name!r}: {what}" for field in schema if (what := doubled_field(field.type))]
    if found:
        raise Unreadable("; ".join(found[:3]) + " (rename or drop one)")


def doubled_field(type: Any) -> str | None:
    """What is wrong with a type that has structs with a field twice, at any depth."""
    import pyarrow as pa

    inner = [type.field(number) for number in range(type.num_fields)]
    if pa.types.is_struct(type):
        doubled = [name for name, count in Counter(field.name for field in inner).items() if count > 1]
        if doubled:
            return f"its objects have field {doubled[0]!r} twice"
    if pa.types.is_dictionary(type):
        return doubled_field(type.value_type)
    return next((what for field in inner if (what := doubled_field(field.type))), None)


def batch_records(batches: Iterable[Any], *, kind: str, file_bytes: int | None = None) -> Generator[Record, None, None]:
    """The records of record batches, numbered from 1 over all of them, and one that says where they end early.

    `file_bytes`: the size of the file that they come from, where there is one.
    """
    number = 0
    expansion = None if file_bytes is None else Expansion(file_bytes)
    iterator = iter(batches)
    try:
        while True:
            with reading(kind):
                batch = next(iterator, None)
                if batch is None:
                    return
                check_schema(batch.schema)
                check_sound(batch, before=number)
                if file_bytes is not None:
                    check_rows(number + batch.num_rows, file_bytes)
            has_tools = any(name in batch.schema.to_string() for name in TOOLS)
            for row in rows_of(batch, expansion):
                number += 1
                if isinstance(row, str):
                    yield Record(number, None, row)
                else:
                    yield Record(number, own_keys(row) if has_tools else row)
    except Unreadable as error:
        yield Record(number + 1 if number else None, None, str(error))


def own_keys(value: Any) -> Any:
    """The row, its calls and definitions of tools without keys that are null.

    Arrow gives each object of a column the keys of all: the arguments of one tool stand as null in calls of the others.
    """
    if isinstance(value, dict):
        return {key: without_nulls(inner) if key in TOOLS else own_keys(inner) for key, inner in value.items()}
    return [own_keys(inner) for inner in value] if isinstance(value, list) else value


def without_nulls(value: Any) -> Any:
    """The value, of its objects only keys that hold something, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def check_rows(rows: int, file_bytes: int) -> None:
    """Unreadable where a file has more rows than it has bits."""
    if rows > max(FEW_ROWS, ROWS_PER_BYTE * file_bytes):
        raise Unreadable(f"it claims {rows:,} rows or more in {file_bytes:,} bytes: they cannot hold different texts")


def check_sound(batch: Any, *, before: int) -> None:
    """Unreadable for arrays whose offsets or indices lead elsewhere: to spell them out would end the process.

    Texts at the top that are not UTF-8 are not judged: they cost one row.
    """
    import pyarrow as pa

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)  # of a text, the offsets before the bytes
        except (pa.ArrowException, ValueError, IndexError) as error:
            type = column.type
            is_text = pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
            if is_text and "UTF8" in str(error):
                continue
            what = f"column {name!r} is broken after row {before}: {first_line(error)}"
            raise Unreadable(what) from error


def rows_of(batch: Any, expansion: Expansion | None) -> Iterator[dict[str, Any] | str]:
    """The rows of a sound batch, and in the place of a row that cannot be used what is wrong with it."""
    is_small = batch.nbytes <= PIECE_BYTES and not any(hides_bytes(type) for type in batch.schema.types)
    sizes = 0 if is_small else sum_of(map(value_bytes, batch.columns))
    start = 0
    while start < batch.num_rows:
        stop = piece_end(sizes, start, rows=batch.num_rows)
        first = size_at(sizes, start)
        if first > MAX_ROW_BYTES:
            yield f"the row is longer than {MAX_ROW_BYTES // 2**20} MiB"
        else:
            yield from spelt(plain(batch.slice(start, stop - start)))
        if expansion and first > LONG_ROW_BYTES and (problem := expansion.grown(first)):
            raise Unreadable(problem)
        start = stop


def size_at(sizes: Sizes, row: int) -> int:
    """The bytes of one row."""
    return sizes if isinstance(sizes, int) else int(sizes[row])


def piece_end(sizes: Sizes, start: int, *, rows: int) -> int:
    """Where a piece from `start` ends: some rows of few bytes, or one row; a long row is a piece of its own."""
    stop = min(rows, start + PIECE_ROWS)
    if isinstance(sizes, int):
        return min(stop, start + max(1, PIECE_BYTES // max(1, sizes))) if sizes <= LONG_ROW_BYTES else start + 1
    if sizes[start] > LONG_ROW_BYTES:
        return start + 1
    own = sizes[start:stop]
    fitting = np.flatnonzero((np.cumsum(own) > PIECE_BYTES) | (own > LONG_ROW_BYTES))
    return start + int(fitting[0]) if fitting.size else stop


def plain(batch: Any) -> Any:
    """The batch without dictionaries: their values are far quicker as an array than one by one."""
    import pyarrow as pa

    columns = [
        column if (type := without_dictionaries(column.type)) == column.type else column.cast(type)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def without_dictionaries(type: Any) -> Any:
    """The type of the same values, spelt out; what stands in kinds of lists that are rare stays as it is."""
    import pyarrow as pa

    if pa.types.is_dictionary(type):
        return type.value_type
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(without_dictionaries(field.type)) for field in type])
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(without_dictionaries(type.value_type)))
    return type


def spelt(batch: Any) -> list[dict[str, Any] | str]:
    """The rows of a piece; a value that Python has no word for costs its row alone."""
    try:
        return batch.to_pylist()
    except Exception as error:  # noqa: BLE001  a value from outside: not UTF-8, the year 12000, an unknown time zone
        if batch.num_rows == 1:
            return [what_is_wrong(batch, error)]
        middle = batch.num_rows // 2
        return [*spelt(batch.slice(0, middle)), *spelt(batch.slice(middle))]


def what_is_wrong(row: Any, error: Exception) -> str:
    """What to say of a row of which some column has no value in Python."""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            column.to_pylist()
        except UnicodeDecodeError as found:
            return f"column {name!r} holds byte 0x{found.object[found.start]:02x}, which is not UTF-8"
        except Exception as found:  # noqa: BLE001  see `spelt`
            return f"column {name!r} holds a {column.type} that cannot be read: {first_line(found)}"
    return f"the row cannot be read: {first_line(error)}"
