"""The table of the lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHOWN = ("ndcg@10", "recall@10")


def read(file: Path) -> list[dict[str, Any]]:
    """The lines that are there."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def made_of(lines: Sequence[dict[str, Any]]) -> str:
    """One row a run: each measure of base and adapter with the interval of the difference, and the held-out loss."""
    sets = list(lines[0]["measures"]) if lines else []
    heads = [f"{name} {measure}" for name in sets for measure in SHOWN]
    table = [["objective", "seed", *heads, "held-out loss", "training"]]
    for line in lines:
        cells = [difference(line["measures"][name][measure]) for name in sets for measure in SHOWN]
        loss = line["generative_loss"]
        row = [line["objective"], str(line["seed"]), *cells, f"{loss['before']:.3f} -> {loss['after']:.3f}"]
        table.append([*row, f"{line['seconds'] / 60:.0f} min"])
    rows = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([rows[0], "| " + " | ".join("---" for _ in table[0]) + " |", *rows[1:]])


def difference(measure: dict[str, float]) -> str:
    """Base -> adapter (the 95 % interval of the difference)."""
    low, high = measure["low"], measure["high"]
    return f"{measure['base']:.3f} -> {measure['value']:.3f} ({low:+.3f} .. {high:+.3f})"
