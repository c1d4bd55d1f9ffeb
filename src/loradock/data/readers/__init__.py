"""Readers, one a kind of file. To add one: write a module with a `Reader` and add it to `READERS`.

Order matters only for the error that lists the kinds.
"""

from __future__ import annotations

from loradock.data.readers import columnar, delimited, json_array, jsonl
from loradock.data.readers.base import Damaged, Reader, Record
from loradock.data.readers.compression import SUFFIXES as COMPRESSIONS

READERS: tuple[Reader, ...] = (
    json_array.READER,
    jsonl.READER,
    delimited.CSV,
    delimited.TSV,
    columnar.PARQUET,
    columnar.ARROW,
)

__all__ = ["READERS", "Damaged", "Reader", "Record", "known_suffixes", "reader_of"]


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
