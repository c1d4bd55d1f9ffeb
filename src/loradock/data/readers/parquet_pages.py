"""How large the pages of a Parquet file are, by their own headers, before one is unpacked.

The footer gives the sum of a column's pages alone. A page is unpacked whole, and its header says to how many bytes: a
few KiB can say 2 GiB. Headers are Thrift's compact protocol, of which this reads as much as it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

HEADER_BYTES = 4096
"""Read at once of a page; a header that is longer (statistics hold values) is read again, longer."""
LONGEST_HEADER_BYTES = 64 << 20
DICTIONARY_PAGE = 2
DATA_HEADERS = (5, 8)
"""The fields that hold what is said of a page of values, in both versions: first how many."""
MOST_NESTED = 16
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class BadPage(Exception):
    """A page header that is none."""


class _Short(Exception):
    """The header goes on behind the bytes that were read."""


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Of the pages of a column in a row group, in bytes unpacked: all, the largest, and the dictionary."""

    total_bytes: int
    largest_bytes: int
    dictionary_bytes: int


def pages_of(stream: BinaryIO, column: Any) -> Pages:
    """The pages of a column chunk, given as `pyarrow` describes it. BadPage where one has no readable header."""
    starts = [column.data_page_offset]
    if column.has_dictionary_page and column.dictionary_page_offset:
        starts.append(column.dictionary_page_offset)
    at = min(starts)
    end = at + column.total_compressed_size
    sizes: list[tuple[int, int]] = []
    values = 0
    while at < end and values < column.num_values:  # as long as a reader goes on; what follows is never unpacked
        kind, unpacked, packed, held, header = _header(stream, at)
        if unpacked < 0 or packed < 0:
            raise BadPage(f"a page of {unpacked} bytes")
        sizes.append((kind, unpacked))
        values += held
        at += header + packed
    return Pages(
        total_bytes=sum(size for _, size in sizes),
        largest_bytes=max((size for _, size in sizes), default=0),
        dictionary_bytes=sum(size for kind, size in sizes if kind == DICTIONARY_PAGE),
    )


def _header(stream: BinaryIO, at: int) -> tuple[int, int, int, int, int]:
    """Kind, bytes unpacked, bytes packed, values (none of a dictionary), and the length of the header there."""
    wanted = HEADER_BYTES
    while True:
        content = os.pread(stream.fileno(), wanted, at)
        try:
            return _Compact(content).page()
        except _Short:
            if len(content) < wanted or wanted >= LONGEST_HEADER_BYTES:
                raise BadPage("a page header is cut short") from None
            wanted *= 16


class _Compact:
    """Thrift's compact protocol, from bytes."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def page(self) -> tuple[int, int, int, int, int]:
        """See `_header`: the first three fields, and all the others passed by."""
        found: dict[int, int] = {}
        self.fields(lambda number, kind: self.number_or_skip(found, number, kind), depth=0)
        if not {1, 2, 3} <= found.keys():
            raise BadPage("a page header without sizes")
        return found[1], found[2], found[3], max(0, found.get(-1, 0)), self.at

    def number_or_skip(self, found: dict[int, int], number: int, kind: int) -> None:
        """Keep a field that is a number, pass another by."""
        if kind == _I32:
            found[number] = self.signed()
        elif kind == _STRUCT and number in DATA_HEADERS:
            inner: dict[int, int] = {}
            self.fields(lambda at, of: self.number_or_skip(inner, at, of), depth=1)
            found[-1] = inner.get(1, 0)
        else:
            self.skip(kind, depth=1)

    def fields(self, take: Callable[[int, int], None], *, depth: int) -> None:
        """Give each field of a struct, by number and type, to `take`, which reads its value."""
        if depth > MOST_NESTED:
            raise BadPage("a page header is nested too deeply")
        number = 0
        while (head := self.byte()) != _STOP:
            kind, step = head & 15, head >> 4
            number = number + step if step else self.signed()
            take(number, kind)

    def skip(self, kind: int, *, depth: int) -> None:
        """Pass a value of a type by."""
        if depth > MOST_NESTED:
            raise BadPage("a page header is nested too deeply")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.forward(1)
        elif kind in (_I16, _I32, _I64):
            self.unsigned()
        elif kind == _DOUBLE:
            self.forward(8)
        elif kind == _BINARY:
            self.forward(self.unsigned())
        elif kind == _STRUCT:
            self.fields(lambda _, inner: self.skip(inner, depth=depth + 1), depth=depth)
        elif kind in (_LIST, _SET):
            head = self.byte()
            for _ in range(self.unsigned() if head >> 4 == 15 else head >> 4):
                self.skip(_BYTE if head & 15 in (_TRUE, _FALSE) else head & 15, depth=depth + 1)
        else:  # no header of a page has a map
            raise BadPage(f"a page header with a field of type {kind}")

    def byte(self) -> int:
        if self.at >= len(self.content):
            raise _Short
        self.at += 1
        return self.content[self.at - 1]

    def forward(self, count: int) -> None:
        self.at += count
        if self.at > len(self.content):
            raise _Short

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise BadPage("a page header with a number that does not end")

    def signed(self) -> int:
        """Zigzag."""
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)
