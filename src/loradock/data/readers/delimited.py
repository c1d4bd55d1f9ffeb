"""CSV and TSV with a header. A bad row is a problem, and the next row is read."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Generator, Iterator
from functools import partial
from typing import BinaryIO

from loradock.data.readers.base import BLANK, MAX_ROW_BYTES, MOST_BLANK_LINES, Damaged, Reader, Record, not_utf8

PROBLEMS_SHOWN = 20
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


def _records(stream: BinaryIO, *, delimiter: str) -> Generator[Record, None, None]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield from _text_records(text, delimiter)
    finally:
        text.detach()


def _text_records(text: io.TextIOWrapper, delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(MAX_ROW_BYTES)
    rows = csv.reader(_lines(text), delimiter=delimiter, strict=True)
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
            if problem := _header_problem(header, delimiter):
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


def _header_problem(header: list[str], delimiter: str) -> str | None:
    if found := _ESCAPED_BYTE.search("".join(header)):
        return _bad_byte(found)
    if len(header) == 1:
        for other, name in ((";", "semicolons"), ("\t", "tabs (rename the file to end in .tsv)"), (",", "commas")):
            if other != delimiter and other in header[0]:
                return f"the header is one column, {header[0]!r}: the fields seem to be separated by {name}"
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


CSV = Reader(name="CSV", suffixes=(".csv",), records=partial(_records, delimiter=","), is_text=True)
TSV = Reader(name="TSV", suffixes=(".tsv",), records=partial(_records, delimiter="\t"), is_text=True)
