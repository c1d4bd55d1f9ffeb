"""What was measured so far, a JSON line each, so that the same command continues where it was cut off."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loradock.analysis.diagnose.measure import Outcome, as_dict, from_dict
from loradock.errors import Problem, UsageError

FILE = "results.jsonl"


class Results:
    """Outcomes by round and settings; kept in a file where there is a folder for it."""

    def __init__(self, folder: Path | None, *, identity: Mapping[str, str]) -> None:
        """`identity`: what the measurements hold for. UsageError with all in which those in the folder differ."""
        self.file = folder / FILE if folder else None
        self.known: dict[tuple[int, tuple[str, ...]], Outcome] = {}
        if self.file is None:
            return
        lines = parsed(self.file)
        if not lines:
            self._append({"diagnosis": identity})
        elif problems := differing(lines[0].get("diagnosis"), identity):
            raise UsageError(
                f"{self.file} holds the diagnosis of another configuration, machine or number of steps",
                hint="name another directory with --output",
                problems=problems,
            )
        for line in lines[1:]:
            self.known[line["round"], tuple(line["settings"])] = from_dict(line)

    def get(self, number: int, settings: Sequence[str]) -> Outcome | None:
        """What a round found for these settings; None where it did not come so far."""
        return self.known.get((number, tuple(settings)))

    def put(self, number: int, settings: Sequence[str], outcome: Outcome) -> None:
        """Keep an outcome."""
        self.known[number, tuple(settings)] = outcome
        if self.file:
            self._append({"round": number, "settings": list(settings), **as_dict(outcome)})

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self.file
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def differing(recorded: Any, current: Mapping[str, str]) -> list[Problem]:
    """What is not as it was; a file of another version tells nothing of it."""
    if not isinstance(recorded, Mapping):
        return [Problem(what="written by another version of loradock, without what it was measured for")]
    names = [name for name in sorted({*recorded, *current}) if recorded.get(name) != current.get(name)]
    return [
        Problem(what=f"{name} was {recorded.get(name, 'absent')}, now {current.get(name, 'absent')}") for name in names
    ]


def parsed(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; the last may have been cut off."""
    entries: list[dict[str, Any]] = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            entries.append(json.loads(text))
        except ValueError:
            continue
    return entries
