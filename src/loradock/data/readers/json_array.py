"""A JSON array of rows, or objects one after the other, parsed row by row from a moving window in little memory."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

from loradock.data.readers.base import (
    BLANK,
    CHUNK_BYTES,
    MAX_ROW_BYTES,
    MOST_BLANK_LINES,
    Mendable,
    Reader,
    Record,
    not_utf8,
)
from loradock.data.readers.strict_json import StrictDecoder, not_an_object
from loradock.files.foreign_json import fault

_SPACE = re.compile(r"[ \t\r\n]*")
EXCERPT_CHARACTERS = 40
_LONGEST_TOKEN = 16
"""No JSON token but a string is longer: an error this near the window's end may be the window's, not the file's."""


class _Syntax(Exception):
    """The array cannot be read further; holds the line and the reason."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.record = Record(line, None, reason)


class _Window:
    """The part of the file that is being parsed: `text[at:]` is unread, `line` is the line of `text[at]`."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.text, self.at, self.line = "", 0, 1
        self.is_end = False
        self.bad_bytes: str | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()

    def extend(self) -> bool:
        """Read on (as much again as is unread, so that long rows cost linear time); False at the end."""
        if self.is_end:
            return False
        unread = self.text[self.at :]
        if len(unread) > MAX_ROW_BYTES:
            raise _Syntax(self.line, f"the row is longer than {MAX_ROW_BYTES // 2**20} MiB")
        raw = self.stream.read(max(CHUNK_BYTES, len(unread)))
        self.is_end = not raw
        try:
            fresh = self._decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            self.is_end, self.bad_bytes = True, not_utf8(error.object, error.start)
            fresh = error.object[: error.start].decode("utf-8-sig" if self.line == 1 and not unread else "utf-8")
        self.text, self.at = unread + fresh, 0
        return True

    def move(self, position: int) -> None:
        """Count the lines up to `position` and go there."""
        self.line += self.text.count("\n", self.at, position)
        self.at = position

    def peek(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        first = self.line
        while True:
            if self.line - first > MOST_BLANK_LINES:
                raise _Syntax(first + 1, BLANK)
            self.move(_SPACE.match(self.text, self.at).end())  # pyright: ignore[reportOptionalMemberAccess]
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.extend():
                return ""

    def error(self, position: int, reason: str) -> _Syntax:
        """The error at `position`; where the window was cut by bytes that are not UTF-8, those are the reason."""
        line = self.line + self.text.count("\n", self.at, position)
        if self.bad_bytes and position >= len(self.text.rstrip()) - _LONGEST_TOKEN:
            return _Syntax(line, self.bad_bytes)
        return _Syntax(line, reason)


def _records(stream: BinaryIO) -> Generator[Record, None, None]:
    window = _Window(stream)
    try:
        first = window.peek()
        if first == "" and window.bad_bytes is None:
            return
        if first == "{":
            yield from _objects(window)
        elif first == "[":
            window.move(window.at + 1)
            yield from _numbered(_rows(window))
            if window.peek() != "":
                raise window.error(window.at, "there is more after the array's closing bracket")
        else:
            raise window.error(window.at, "the file is not a JSON array of rows")
        if window.bad_bytes:
            raise _Syntax(window.line, window.bad_bytes)
    except _Syntax as error:
        yield error.record


def _numbered(records: Generator[Record, None, None]) -> Iterator[Record]:
    """The records, each with minus its number for a line where it shares that line with the one before or after it."""
    try:
        before, number, record = 0, 1, next(records, None)
        while record is not None:
            line = record.line
            try:
                after, error = next(records, None), None
            except _Syntax as raised:
                after, error = None, raised
            is_shared = line == before or (after is not None and line == after.line)
            yield record._replace(line=-number) if is_shared else record
            if error:
                raise error
            before, number, record = line, number + 1, after
    finally:
        records.close()


def _objects(window: _Window) -> Iterator[Record]:
    """Objects one after the other, a line each or not; one alone may be a row, or hold the rows in one of its keys."""
    decoder, number = StrictDecoder(), 0
    while window.peek() == "{":
        number += 1
        line = window.line
        row = _value(window, decoder, number=number)
        is_alone = number == 1 and window.peek() != "{"
        if is_alone and (key := _key_of_rows(row)):
            raise _Syntax(line, _inside(key))
        yield Record(line, None, decoder.take_flaws()) if decoder.flaws else Record(line, row)
    if window.peek() != "":
        raise window.error(window.at, f"after object {number} stands {window.peek()!r}, not another object")


def _key_of_rows(value: dict[str, Any]) -> str | None:
    """The key whose list holds the most objects that are no chat turns; None where there is none."""
    counts = {key: len(inner) for key, inner in value.items() if type(inner) is list and _are_rows(inner)}
    return max(counts, key=counts.__getitem__) if counts else None


def _are_rows(values: list[Any]) -> bool:
    return bool(values) and all(type(each) is dict and not each.keys() & {"role", "from"} for each in values)


def _inside(key: str) -> Mendable:
    """What to say of rows in a key, and what takes them out."""
    program = f".[{json.dumps(key, ensure_ascii=False)}][]"
    return Mendable(f"the rows are in the key {key!r}", filter=f"jq -c {shlex.quote(program)}", suffix=".jsonl")


def _rows(window: _Window) -> Generator[Record, None, None]:
    decoder, number = StrictDecoder(), 0
    if window.peek() == "]":
        window.move(window.at + 1)
        return
    while True:
        number += 1
        if window.peek() == "]":
            raise window.error(window.at, "a comma before the closing bracket: remove it")
        line = window.line
        row = _value(window, decoder, number=number)
        if decoder.flaws:
            yield Record(line, None, decoder.take_flaws())
        elif type(row) is dict:
            yield Record(line, row)
        else:
            yield Record(line, None, not_an_object(row))
        separator = window.peek()
        if separator not in (",", "]"):
            what = (
                _CUT
                if separator == ""
                else f"a comma is missing before {separator!r}{_seen(window, window.at, number)}"
            )
            raise window.error(window.at, what)
        window.move(window.at + 1)
        if separator == "]":
            return


_CUT = "the file ends inside the array: it is cut short"


def _value(window: _Window, decoder: StrictDecoder, *, number: int) -> Any:
    """The value at the window's start, the file's record of that number; reads on while it runs over the end."""
    while True:
        try:
            value, end = decoder.raw_decode(window.text, window.at)
        except json.JSONDecodeError as error:
            decoder.flaws.clear()
            at_edge = error.pos >= len(window.text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")
            if at_edge and window.extend():
                continue
            is_cut = at_edge and (error.pos >= len(window.text.rstrip()) or error.msg.startswith("Unterminated"))
            position = len(window.text) if is_cut and window.bad_bytes else error.pos
            what = _CUT if is_cut else f"not JSON: {fault(error)}{_seen(window, position, number)}"
            raise window.error(position, what) from None
        except RecursionError:
            raise window.error(window.at, "not usable JSON: nested too deeply") from None
        except ValueError as error:
            raise window.error(window.at, f"not usable JSON: {error}") from None
        if end < len(window.text) or not window.extend():
            window.move(end)
            return value
        decoder.flaws.clear()


def _seen(window: _Window, position: int, number: int) -> str:
    """Where a mistake stands, for a file whose lines are long: the record's number, and the text around it."""
    around = window.text[max(window.at, position - EXCERPT_CHARACTERS) : position + EXCERPT_CHARACTERS // 2]
    return f", in record {number} at {around.strip()!r}"


READER = Reader(name="JSON", suffixes=(".json",), records=_records, is_text=True)
