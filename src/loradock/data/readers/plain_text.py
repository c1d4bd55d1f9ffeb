"""Plain text and Markdown: rows with the one column `text`, which is a line, a paragraph or the file (`data.text`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import BinaryIO

from loradock.data.readers.base import BLANK, MAX_ROW_BYTES, MOST_BLANK_LINES, Damaged, Hinted, Reader, Record, not_utf8

SMALLER = "--set data.text=paragraph"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


def _lines(stream: BinaryIO) -> Generator[Record, None, None]:
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
            if raw[:2] in UTF16:
                return
            continue
        if text.strip():
            last = line
            yield Record(line, {"text": text})
        elif line - last > MOST_BLANK_LINES:
            raise Damaged(BLANK)


def _paragraphs(stream: BinaryIO) -> Generator[Record, None, None]:
    """Lines up to a blank one, joined as they stand."""
    first, lines, size_bytes, before = 0, list[str](), 0, 0
    for record in _lines(stream):
        line = record.line or 0
        if lines and (record.row is None or line != before + 1):
            yield Record(first, {"text": "\n".join(lines)})
            lines, size_bytes = [], 0
        before = line
        if record.row is None:
            yield record
            continue
        first = first if lines else line
        lines.append(record.row["text"])
        size_bytes += len(lines[-1].encode()) + 1
        if size_bytes > MAX_ROW_BYTES:
            yield Record(first, None, f"the paragraph is longer than {MAX_ROW_BYTES // 2**20} MiB")
            return
    if lines:
        yield Record(first, {"text": "\n".join(lines)})


def _file(stream: BinaryIO) -> Generator[Record, None, None]:
    """All of it, without the white space at its end: the end that is learned follows the text."""
    raw = stream.read(MAX_ROW_BYTES + 1)
    if len(raw) > MAX_ROW_BYTES:
        what = f"as one document the file is longer than {MAX_ROW_BYTES // 2**20} MiB"
        yield Record(1, None, Hinted(what, hint=SMALLER))
        return
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Record(1 + raw.count(b"\n", 0, error.start), None, not_utf8(raw, error.start))
        return
    text = text.replace("\r\n", "\n").rstrip()
    if text:
        yield Record(1, {"text": text})


READER = Reader(
    name="text",
    suffixes=(".txt", ".md"),
    records=_lines,
    is_text=True,
    units={"line": _lines, "paragraph": _paragraphs, "file": _file},
)
