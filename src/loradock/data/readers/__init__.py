"""Readers, one a kind of file. To add one: write a module with a `Reader` and add it to `READERS`.

Order matters only for the error that lists the kinds.
"""

from __future__ import annotations

from typing import BinaryIO

from loradock.data.readers import columnar, delimited, json_array, jsonl, plain_text
from loradock.data.readers.base import Damaged, Reader, Record
from loradock.data.readers.compression import SUFFIXES as COMPRESSIONS

READERS: tuple[Reader, ...] = (
    json_array.READER,
    jsonl.READER,
    delimited.CSV,
    delimited.TSV,
    plain_text.READER,
    columnar.PARQUET,
    columnar.ARROW,
)

__all__ = ["READERS", "Damaged", "Reader", "Record", "foreign", "known_suffixes", "reader_of"]


def reader_of(name: str) -> tuple[Reader, str] | None:
    """The reader for a file name and its compression suffix (empty for none); None where none fits."""
    lower = name.lower()
    compression = next((suffix for suffix in COMPRESSIONS if lower.endswith(suffix)), "")
    plain = lower.removesuffix(compression)
    for reader in READERS:
        if plain.endswith(reader.suffixes) and (reader.is_text or not compression):
            return reader, compression
    return None


def known_suffixes() -> str:
    """The suffixes that are read, for an error or a help text."""
    plain = [suffix for reader in READERS for suffix in reader.suffixes]
    text = [suffix for reader in READERS if reader.is_text for suffix in reader.suffixes]
    return f"{', '.join(plain)} (and {', '.join(text)} with a further {' or '.join(COMPRESSIONS)})"


MAGIC = {
    b"\x1f\x8b": ("gzip", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"PAR1": ("a Parquet file", ".parquet"),
    b"PK\x03\x04": ("a zip archive or a spreadsheet", ""),
}
"""How files begin that are no text, what they are, and the suffix that they are read by."""


def foreign(reader: Reader, stream: BinaryIO) -> str | None:
    """What to say of a text file whose first bytes are another kind's; takes nothing from the (buffered) stream."""
    head: bytes = stream.peek()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for magic, (kind, suffix) in MAGIC.items():
        if head.startswith(magic):
            name = f"{reader.suffixes[0]}{suffix}" if suffix in COMPRESSIONS else suffix
            return f"this is {kind} ({f'rename it to end in {name}' if name else 'export it as CSV or JSONL'})"
    return None
