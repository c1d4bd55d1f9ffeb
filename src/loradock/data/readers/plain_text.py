"""Plain text: each line that is not blank is a row with the one column `text`."""

from __future__ import annotations

from collections.abc import Generator
from typing import BinaryIO

from loradock.data.readers.base import BLANK, MAX_ROW_BYTES, MOST_BLANK_LINES, Damaged, Reader, Record, not_utf8


def _records(stream: BinaryIO) -> Generator[Record, None, None]:
    line = last = 0
    while raw := stream.readline(MAX_ROW_BYTES + 1):
        line += 1
        if len(raw) > MAX_ROW_BYTES:
            yield Record(line, None, f"the line is longer than {MAX_ROW_BYTES // 2**20} MiB")
            return
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield Record(line, None, not_utf8(raw, error.start))
            if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
                return
            continue
        if text.strip():
            last = line
            yield Record(line, {"text": text})
        elif line - last > MOST_BLANK_LINES:
            raise Damaged(BLANK)


READER = Reader(name="text", suffixes=(".txt",), records=_records, is_text=True)
