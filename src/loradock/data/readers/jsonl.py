"""JSONL: one JSON object a line. A bad line is a problem, and the next line is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO

from loradock.data.readers.base import (
    BLANK,
    MAX_ROW_BYTES,
    MOST_BLANK_LINES,
    Damaged,
    Mendable,
    Reader,
    Record,
    RowFlaw,
    not_utf8,
)
from loradock.data.readers.strict_json import StrictDecoder, not_an_object
from loradock.files.foreign_json import fault


def _records(stream: BinaryIO) -> Generator[Record, None, None]:
    decoder = StrictDecoder()
    decode, flaws = decoder.decode, decoder.flaws
    is_first = True
    for line, content in _lines(stream):
        raw = content
        if len(raw) > MAX_ROW_BYTES:
            yield _too_long(stream, line, raw)
            continue
        if is_first:
            is_first = False
            raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.lstrip().startswith(b"["):
                yield _array(decode, raw, line)
                return
            if raw.isspace() or not raw:
                continue
        try:
            row = decode(str(raw, "utf-8"))
        except (ValueError, RecursionError) as error:
            flaws.clear()
            yield Record(line, None, _reason(error, raw))
            if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                return
            continue
        if type(row) is dict and not flaws:
            yield Record(line, row)
        else:
            yield Record(line, None, RowFlaw(decoder.take_flaws() or not_an_object(row)))


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    readline, line, last = stream.readline, 0, 0
    while raw := readline(MAX_ROW_BYTES + 1):
        line += 1
        if not raw.isspace():
            last = line
            yield line, raw
        elif line - last > MOST_BLANK_LINES:
            raise Damaged(BLANK)


def _too_long(stream: BinaryIO, line: int, raw: bytes) -> Record:
    """Skip the rest of a line that is longer than any row may be."""
    while raw and not raw.endswith(b"\n"):
        raw = stream.readline(MAX_ROW_BYTES)
    return Record(line, None, RowFlaw(f"the line is longer than {MAX_ROW_BYTES // 2**20} MiB"))


def _reason(error: ValueError | RecursionError, raw: bytes) -> str:
    if isinstance(error, UnicodeDecodeError):
        return not_utf8(raw, error.start)
    if isinstance(error, json.JSONDecodeError):
        is_at_end = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        if is_at_end and not raw.endswith(b"\n"):
            return "the file ends inside this row: it is cut short"
        return RowFlaw(f"not JSON: {fault(error)} at column {error.pos + 1}")
    if isinstance(error, RecursionError):
        return RowFlaw("not usable JSON: nested too deeply")
    return RowFlaw(f"not usable JSON: {error}")


READER = Reader(name="JSONL", suffixes=(".jsonl", ".ndjson"), records=_records, is_text=True)


def _array(decode: Callable[[str], Any], raw: bytes, line: int) -> Record:
    """What is wrong with a file whose first line begins an array: its rows are lists of turns, or it is no JSONL."""
    try:
        turns = decode(str(raw, "utf-8"))
    except (ValueError, RecursionError):
        turns = None
    columns = {"role": "messages", "from": "conversations"}
    column = next(
        (columns[key] for key in columns if turns and all(type(turn) is dict and key in turn for turn in turns)), ""
    )
    if column:
        what = f"each row is a list of turns, not an object that has them in {column!r}"
        return Record(None, None, Mendable(what, filter=f"jq -c '{{{column}: .}}'", suffix=".jsonl"))
    return Record(line, None, "a JSON array, not one object a line (rename the file to end in .json)")
