"""The types of a reader: a stream of bytes in, records out, with bounded memory.

To add a kind of file: write one module with a `READER`, and add it to `READERS` in `__init__.py`. A reader never
raises for bad content: a record that cannot be used carries a problem in place of its row, and the stream continues
wherever the kind of file lets it find the next record.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, Self

MAX_ROW_BYTES = 64 * 2**20
"""Longest record that is read, so that a file without line breaks cannot fill the memory."""

CHUNK_BYTES = 2**20
"""How much of a file is read at a time."""

SWOLLEN_BYTES, SWOLLEN_TIMES = 64 * 2**20, 200
"""What is unpacked to more than both is refused: text becomes 3 to 20 times as large, the most of gzip is 1032."""


MOST_BLANK_LINES = 1_000_000
"""One after the other: beyond them a file is not looked through for another row."""
BLANK = f"{MOST_BLANK_LINES:,} blank lines follow one another here (remove them)"


class Record(NamedTuple):
    """One record of a source: a row, or what is wrong with it.

    `line` counts from 1 and is where the record starts; in kinds without lines (Parquet, arrow, a hub) it is the
    number of the row; where several records of a JSON array share a line, it is minus the number of the record. It is
    None where a problem concerns the whole file. Exactly one of `row` and `problem` is None.
    """

    line: int | None
    row: dict[str, Any] | None
    problem: str | None = None


class RowFlaw(str):
    """What is wrong with one record, after which the next is found as ever."""


class Mendable(str):
    """A problem of a whole file, with the `filter` of the shell that makes a good one of its content, and its suffix.

    An empty `suffix`: that of the file.
    """

    filter: str
    suffix: str

    def __new__(cls, what: str, *, filter: str, suffix: str = "") -> Self:
        """As text, it is `what` alone."""
        made = super().__new__(cls, what)
        made.filter, made.suffix = filter, suffix
        return made


class Hinted(str):
    """A problem of a file, with the option that reads it in another way as `hint`."""

    hint: str

    def __new__(cls, what: str, *, hint: str) -> Self:
        """As text, it is `what` alone."""
        problem = super().__new__(cls, what)
        problem.hint = hint
        return problem


class Damaged(Exception):
    """A stream that cannot be read further: compressed and cut short, corrupt or swelling; or blank without an end."""


class Expansion:
    """What comes of some bytes, beside their number: text that is worth training on does not swell 200 times."""

    def __init__(self, packed_bytes: int = 0) -> None:
        self.packed_bytes, self.unpacked_bytes = packed_bytes, 0

    def grown(self, unpacked_bytes: int) -> str | None:
        """Count so many bytes more; what to say where it is too much."""
        self.unpacked_bytes += unpacked_bytes
        if self.unpacked_bytes <= max(SWOLLEN_BYTES, SWOLLEN_TIMES * self.packed_bytes):
            return None
        return f"{self.packed_bytes:,} bytes unpack to more than {SWOLLEN_TIMES} times as many: they repeat themselves"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A kind of file: the suffixes it is known by, and how its bytes become records.

    `is_text` says that the file may also come compressed (a further .gz or .zst). `units`: of text without rows of its
    own, how its records are read by what is a document (`data.text`).
    """

    name: str
    suffixes: tuple[str, ...]
    records: Callable[[BinaryIO], Generator[Record, None, None]]
    is_text: bool
    units: Mapping[str, Callable[[BinaryIO], Generator[Record, None, None]]] = field(
        default_factory=dict[str, Callable[[BinaryIO], Generator[Record, None, None]]]
    )


def not_utf8(raw: bytes, position: int) -> Mendable:
    """What to say of bytes that are not UTF-8 at `position`, and what converts them by the likely encoding."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return Mendable("the file is UTF-16, not UTF-8", filter="iconv -f UTF-16 -t UTF-8")
    return Mendable(f"byte 0x{raw[position]:02x} is not UTF-8", filter="iconv -f WINDOWS-1252 -t UTF-8")


class Unreadable(Exception):
    """A file of columns that cannot be read any further; the message is for the user."""
