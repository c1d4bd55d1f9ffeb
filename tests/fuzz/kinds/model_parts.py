"""What the kinds of a model directory share: a tiny model with rows, and the commands that read it."""

from __future__ import annotations

from pathlib import Path

from proven import OPTION
from tiny import make_llama, write_rows

PLAN = ("plan", "--model", "model", "--data", "rows.jsonl")
# --fresh: whatever lies in the folder, a mutant is trained.
TRAIN = (
    *("train", "--model", "model", "--data", "rows.jsonl", "--max-steps", "1", OPTION, "--fresh"),
    *("--set", "output=run", "--set", "data.validation=0", "--set", "data.max_length=64"),
)


def make(folder: Path) -> None:
    """A model directory and rows."""
    make_llama(folder / "model")
    write_rows(folder / "rows.jsonl", rows=8)
