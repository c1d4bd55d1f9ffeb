"""The results file: one line of JSON a slice (or a look at the ceiling), only ever appended to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE, CUT, FAILED = "done", "cut", "failed"


@dataclass(frozen=True, kw_only=True)
class Key:
    """What makes two slices the same one. `shape` is the size of the run: steps, samples, micro-batch budget, seed."""

    model: str
    rows: str
    arm: str
    repeat: int
    shape: dict[str, Any]

    def is_of(self, line: dict[str, Any]) -> bool:
        """True where the line is the result of this slice."""
        return all(line.get(name) == value for name, value in self.__dict__.items())


def read(path: Path) -> list[dict[str, Any]]:
    """Every whole line; one that a killed process left half is passed over."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if is_torn else "") + json.dumps(line) + "\n")


def has(lines: list[dict[str, Any]], key: Key, *, counts_failed: bool = True) -> bool:
    """True where this slice was run; a failed one counts too, unless it is to be tried again."""
    found = [line["status"] for line in lines if line["kind"] == "slice" and key.is_of(line)]
    return any(status != FAILED or counts_failed for status in found)
