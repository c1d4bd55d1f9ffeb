"""What becomes of the columns of a source: used by the format, left out and counted, or refused before they are lost.

A column that another tool would render (`system_prompt`, `context`, a capitalised `Input`) is refused, with the option
that maps it; one that says something about the row (an id, a category) is counted, so that the run can name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from loradock.config.schema import SourceConfig
from loradock.data.formats.base import Format, Row, RowError, is_filled, is_list, is_object
from loradock.data.formats.guess import meant_for, plainly

SAMPLE_CHARACTERS = 40
TURN_KEYS = frozenset(("role", "content", "from", "value"))
TURN_KEYS_USED = 2


@dataclass(frozen=True, kw_only=True)
class UnusedColumn:
    """A column (or a key of turns, `messages[].name`) that no field takes: rows that fill it, and the first value."""

    name: str
    rows: int
    share: float
    sample: str

    def __str__(self) -> str:
        return f"{self.name} ({percent(self.share)} of rows, such as {self.sample})"


@dataclass
class Columns:
    """The columns of a source, counted as its rows pass by."""

    source: SourceConfig
    format: Format
    index: int
    rows: int = 0
    found: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def __post_init__(self) -> None:
        mapping = self.source.fields
        self._column_of = {name: mapping.get(name, name) for name in self.format.fields}
        self._used = set(self._column_of.values())
        self._meant_for = meant_for(self.format, mapping)

    def note(self, row: Row) -> None:
        """Count what this row holds beside the format's fields; RowError for what would be lost."""
        self.rows += 1
        for name, value in row.items():
            if name not in self._used:
                if is_filled(value):
                    self._unused(name, value, row)
            elif is_list(value):
                self._turns(name, value)

    def _unused(self, name: str, value: object, row: Row) -> None:
        wanted = self._meant_for.get(plainly(name))
        if wanted and not is_filled(row.get(self._column_of[wanted])):
            key = f"data.sources.{self.index}"
            raise RowError(
                f"column {name!r} is filled and would be lost",
                hint=f"--set {key}.fields.{wanted}={name}, or to leave it out: --set '{key}.ignore=[{name}]'",
            )
        self._count(name, value)

    def _turns(self, column: str, turns: Sequence[object]) -> None:
        others: dict[str, object] = {}
        for turn in turns:
            if is_object(turn) and len(turn) > TURN_KEYS_USED:
                others |= {key: turn[key] for key in turn if key not in TURN_KEYS and is_filled(turn[key])}
        for key, value in others.items():
            self._count(f"{column}[].{key}", value)

    def _count(self, name: str, value: object) -> None:
        rows, sample = self.found.get(name) or (0, shortened(value))
        self.found[name] = (rows + 1, sample)

    def unused(self) -> list[UnusedColumn]:
        """What was counted, in the order in which it was first seen."""
        return [
            UnusedColumn(name=name, rows=rows, share=rows / self.rows, sample=sample)
            for name, (rows, sample) in self.found.items()
        ]


@dataclass
class Contents:
    """What a source turned out to hold, filled in while its samples are read.

    `starts`: how many lines (or rows) stand before each of its files; lines are counted on over them.
    """

    format: str = ""
    unused: list[UnusedColumn] = field(default_factory=list[UnusedColumn])
    starts: list[int] = field(default_factory=list[int])

    def as_dict(self) -> dict[str, Any]:
        """As the cache keeps it."""
        return asdict(self)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Self:
        """From `as_dict`."""
        return cls(
            format=kept["format"], unused=[UnusedColumn(**each) for each in kept["unused"]], starts=kept["starts"]
        )


def shortened(value: object) -> str:
    """A value as a piece of a line."""
    text = repr(value)
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[: SAMPLE_CHARACTERS - 3]}..."


def percent(share: float) -> str:
    """A share in words: never 0 % of something, nor 100 % of less than all."""
    return f"{min(99.9, max(0.1, 100 * share)):.3g} %" if share < 1 else "100 %"
