"""CSV and TSV with a header. A bad row is a problem, and the next row is read.

A header that is one column by the file's own separator and several by a semicolon, a tab or a comma is separated by it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO

from loradock.data.readers.base import BLANK, MAX_ROW_BYTES, MOST_BLANK_LINES, Damaged, Reader, Record, not_utf8

PROBLEMS_SHOWN = 20
SEPARATORS = (";", "\t", ",")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class _LineTooLong(Exception):
    """A line over the limit: the rest of the file is not looked at."""


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    blank = 0
    while line := text.readline(MAX_ROW_BYTES):
        if len(line) >= MAX_ROW_BYTES:
            raise _LineTooLong
        blank = blank + 1 if line.isspace() else 0
        if blank > MOST_BLANK_LINES:
            raise Damaged(BLANK)
        yield line


def _records(stream: BinaryIO, *, usual: str) -> Generator[Record, None, None]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _text_records(text, usual)
    finally:
        text.detach()


def separator(stream: BinaryIO, usual: str) -> str:
    """What separates the fields of a file, by its header: `usual`, or another sign where that makes one column of it.

    Excel writes semicolons where the comma is the decimal sign.
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        return _separator_of(next((line for line in _lines(text) if not line.isspace()), ""), usual)
    except (_LineTooLong, Damaged):
        return usual
    finally:
        text.detach()


def _separator_of(header: str, usual: str) -> str:
    def columns(sign: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=sign, strict=True), []))
        except csv.Error:
            return 0

    return usual if columns(usual) != 1 else next((sign for sign in SEPARATORS if columns(sign) > 1), usual)


def _text_records(text: io.TextIOWrapper, usual: str) -> Iterator[Record]:
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = _lines(text)
    try:
        blank, first = _first_line(lines)
    except _LineTooLong:
        yield Record(1, None, f"the line is longer than {MAX_ROW_BYTES // 2**20} MiB")
        return
    rows = csv.reader(chain(blank, first, lines), delimiter=_separator_of("".join(first), usual), strict=True)
    header: list[str] | None = None
    line = 1
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(line, None, _reason(error))
            if header is None:
                return
            line = rows.line_num + 1
            continue
        except _LineTooLong:
            yield Record(rows.line_num + 1, None, f"the line is longer than {MAX_ROW_BYTES // 2**20} MiB")
            return
        if cells and header is None:
            header = cells
            if problem := _header_problem(header):
                yield Record(line, None, problem)
                return
        elif cells and header is not None:
            yield _row(cells, header, line)
        line = rows.line_num + 1


def _row(cells: list[str], header: list[str], line: int) -> Record:
    if len(cells) != len(header):
        return Record(line, None, f"{_fields(len(cells))} in this row, {_fields(len(header))} in the header")
    for cell in cells:
        if not cell.isascii() and (found := _ESCAPED_BYTE.search(cell)):
            return Record(line, None, _bad_byte(found))
    return Record(line, dict(zip(header, cells, strict=True)))


def _first_line(lines: Iterator[str]) -> tuple[list[str], list[str]]:
    """The blank lines that a file begins with, and the next one; nothing where there is none."""
    blank: list[str] = []
    for line in lines:
        if not line.isspace():
            return blank, [line]
        blank.append(line)
    return blank, []


def _header_problem(header: list[str]) -> str | None:
    if found := _ESCAPED_BYTE.search("".join(header)):
        return _bad_byte(found)
    problems = [f"column {number} has no name in the header" for number, name in enumerate(header, 1) if not name]
    if problems and not header[0]:
        problems[0] += " (the index of a data frame? write it with index=False)"
    doubled = sorted(name for name, count in Counter(header).items() if name and count > 1)
    problems += [f"the header names column {name!r} more than once" for name in doubled]
    if len(problems) > PROBLEMS_SHOWN:
        problems[PROBLEMS_SHOWN:] = [f"and {len(problems) - PROBLEMS_SHOWN} more"]
    return "; ".join(problems) or None


def _fields(count: int) -> str:
    return "1 field" if count == 1 else f"{count} fields"


def _bad_byte(found: re.Match[str]) -> str:
    raw = found.string[: found.start() + 2].encode("utf-8", "surrogateescape")
    prefix_bytes = len(found.string[: found.start()].encode("utf-8", "surrogateescape"))
    return not_utf8(raw, prefix_bytes)


def _reason(error: csv.Error) -> str:
    if "unexpected end of data" in str(error):
        return "a quoted field starts in this row and is never closed"
    return f"not CSV: {error} (double the quotes inside a quoted field)"


CSV = Reader(name="CSV", suffixes=(".csv",), records=partial(_records, usual=","), is_text=True)
TSV = Reader(name="TSV", suffixes=(".tsv",), records=partial(_records, usual="\t"), is_text=True)
