"""Files of rows."""

from __future__ import annotations

from pathlib import Path

from fuzz.kinds.base import Kind
from fuzz.mutate import any_of, in_json_line, of_bytes, of_text
from tiny import write_rows


def make(folder: Path) -> None:
    write_rows(folder / "rows.jsonl", rows=8)


JSONL = Kind(
    name="rows as JSONL",
    make=make,
    file="rows.jsonl",
    mutate=any_of(in_json_line, of_text, of_bytes),
    command=("data", "stats", "--data", "rows.jsonl"),
)
