"""config.json of a model directory."""

from __future__ import annotations

from pathlib import Path

from fuzz.kinds.base import Kind
from fuzz.mutate import any_of, of_bytes, of_json
from tiny import make_llama, write_rows


def make(folder: Path) -> None:
    make_llama(folder / "model")
    write_rows(folder / "rows.jsonl", rows=8)


CONFIG = Kind(
    name="config.json",
    make=make,
    file="model/config.json",
    mutate=any_of(of_json, of_json, of_json, of_bytes),
    command=("plan", "--model", "model", "--data", "rows.jsonl"),
)
