"""A JSON array of rows, parsed row by row from a moving window, so that a file of any size needs little memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

from loradock.data.readers.base import CHUNK_BYTES, MAX_ROW_BYTES, Reader, Record, not_utf8
from loradock.data.readers.strict_json import StrictDecoder, not_an_object

_SPACE = re.compile(r"[ \t\r\n]*")
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
        while True:
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
        if first != "[":
            raise window.error(window.at, _not_an_array(first))
        window.move(window.at + 1)
        yield from _rows(window)
        if window.peek() != "":
            raise window.error(window.at, "there is more after the array's closing bracket")
        if window.bad_bytes:
            raise _Syntax(window.line, window.bad_bytes)
    except _Syntax as error:
        yield error.record


def _rows(window: _Window) -> Iterator[Record]:
    decoder = StrictDecoder()
    if window.peek() == "]":
        window.move(window.at + 1)
        return
    while True:
        if window.peek() == "]":
            raise window.error(window.at, "a comma before the closing bracket: remove it")
        line = window.line
        row = _value(window, decoder)
        if decoder.flaws:
            yield Record(line, None, decoder.take_flaws())
        elif type(row) is dict:
            yield Record(line, row)
        else:
            yield Record(line, None, not_an_object(row))
        separator = window.peek()
        if separator not in (",", "]"):
            raise window.error(window.at, _CUT if separator == "" else f"a comma is missing before {separator!r}")
        window.move(window.at + 1)
        if separator == "]":
            return


_CUT = "the file ends inside the array: it is cut short"


def _value(window: _Window, decoder: StrictDecoder) -> Any:
    """The value at the window's start; reads on while it runs over the window's end."""
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
            raise window.error(position, _CUT if is_cut else f"not JSON: {error.msg}") from None
        except RecursionError:
            raise window.error(window.at, "not usable JSON: nested too deeply") from None
        except ValueError as error:
            raise window.error(window.at, f"not usable JSON: {error}") from None
        if end < len(window.text) or not window.extend():
            window.move(end)
            return value
        decoder.flaws.clear()


def _not_an_array(first: str) -> str:
    if first == "{":
        return (
            "the top level is an object, not an array of rows "
            "(one object a line? rename the file to end in .jsonl; a list inside? take it out: jq .data)"
        )
    return "the file is not a JSON array of rows"


READER = Reader(name="JSON", suffixes=(".json",), records=_records, is_text=True)
