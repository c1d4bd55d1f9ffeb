"""What to say when a row fits no format: the formats, the nearest of them, and the option that would make it fit."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

from loradock.data.formats.base import Format, RowError

ALIASES: dict[str, tuple[str, ...]] = {
    "instruction": ("question", "query", "task", "prompt"),
    "input": ("context",),
    "output": ("response", "answer", "target", "completion", "chosen"),
    "messages": ("chat", "dialog", "dialogue", "turns"),
    "conversations": ("conversation",),
    "prompt": ("question", "query", "instruction"),
    "completion": ("response", "answer", "target", "output", "chosen"),
    "text": ("content", "body", "document", "story"),
}
"""Column names that other data sets use for a field, likeliest first. Only ever proposed, never taken."""


class Undetected(RowError):
    """A row that fits no format; `hint` is what to type."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


def undetected(
    formats: Sequence[Format], columns: Collection[str], *, mapping: Mapping[str, str], index: int
) -> Undetected:
    """The error for a row with these columns, under this mapping, in source number `index`."""
    known = "; ".join(f"{format.name} needs {', '.join(format.required)}" for format in formats)
    mapped = ", ".join(f"{field} = {column}" for field, column in mapping.items())
    what = (
        f"columns {', '.join(columns) or '(none)'}{f' (with fields {mapped})' if mapped else ''} fit no format: {known}"
    )
    guesses = {format.name: _guess(format, columns, mapping) for format in formats}
    nearest = min(formats, key=lambda format: (_missing(format, guesses[format.name]), len(guesses[format.name])))
    sets = [
        f"--set data.sources.{index}.fields.{field}={column or 'COLUMN'}"
        for field, column in guesses[nearest.name].items()
        if column != field and mapping.get(field) != column
    ]
    return Undetected(what, hint=f"nearest is {nearest.name}: {' '.join(sets)}")


def _guess(format: Format, columns: Collection[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """The likeliest column for each required field of a format; empty where none comes near."""
    guess: dict[str, str] = {}
    lower = {column.lower(): column for column in columns}
    for field in format.required:
        if field in columns or mapping.get(field) in columns:
            guess[field] = field if field in columns else mapping[field]
            continue
        candidates = (field, *ALIASES.get(field, ()), *difflib.get_close_matches(field, lower, n=1, cutoff=0.75))
        guess[field] = next((lower[name] for name in candidates if name in lower), "")
    return guess


def _missing(format: Format, guess: dict[str, str]) -> float:
    """How far a format is from fitting: fields without a column, then fields under another name, as a share."""
    open_fields = sum(1 for column in guess.values() if not column)
    renamed = sum(1 for field, column in guess.items() if column and column != field)
    return (open_fields + renamed / 10) / len(format.required)
