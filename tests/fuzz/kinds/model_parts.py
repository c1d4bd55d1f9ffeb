"""What the kinds of a model directory share: a tiny model with rows, and the commands that read it."""

from __future__ import annotations

from pathlib import Path

from tiny import make_llama, write_rows

PLAN = ("plan", "--model", "model", "--data", "rows.jsonl")
# The run of the good input lies beside each mutant: without --fresh it would be finished already.
TRAIN = (
    *("train", "--model", "model", "--data", "rows.jsonl", "--max-steps", "1", "--skip-env-check", "--fresh"),
    *("--set", "output=run", "--set", "data.validation=0", "--set", "data.max_length=64"),
)


def make(folder: Path) -> None:
    """A model directory and rows."""
    make_llama(folder / "model")
    write_rows(folder / "rows.jsonl", rows=8)
