"""What becomes of the columns of a source: used by the format, left out and counted, or refused before they are lost.

A column that another tool would render (`system_prompt`, `context`, a capitalised `Input`) is refused, with the option
that maps it; one that says something about the row (an id, a category) is counted, so that the run can name it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from loradock.config.sections.data import SourceConfig
from loradock.data.formats import FORMATS, convert_row
from loradock.data.formats.base import Completion, Conversation, Format, Pairs, Sample
from loradock.data.formats.fields import Row, RowError, is_filled, is_list, is_object
from loradock.data.formats.guess import MEANINGFUL, guess, meant_for, options, plainly, setting
from loradock.data.formats.keys import (
    MEDIA,
    RENDERED,
    RENDERED_OF_TURNS,
    is_about_learning,
    learned,
    leftovers,
    says_something,
    turn_keys,
)
from loradock.data.formats.tools import COLUMNS
from loradock.data.formats.turns import CALLS, RESULTS, ROLES, THOUGHTS
from loradock.text.amounts import percent

SAMPLE_CHARACTERS = 40
NUMBER = re.compile(r"\[\d+\]")


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
    """The columns of a source, counted as its rows pass by; `is_trained` False: rows to answer, nothing is learned."""

    source: SourceConfig
    format: Format
    index: int
    is_trained: bool = True
    rows: int = 0
    found: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def __post_init__(self) -> None:
        mapping = self.source.fields
        taken = {*mapping.values()}
        self._column_of = {name: mapping.get(name, None if name in taken else name) for name in self.format.fields}
        self._used = {*self._column_of.values()} - {None}
        # Definitions of tools, and answers that are calls of them, hold any keys.
        defining = (*COLUMNS, "answers") if self.format.answer == "answers" else COLUMNS
        self._defining = {column for name, column in self._column_of.items() if name in defining}
        self._meant_for = meant_for(self.format, mapping)

    def note(self, row: Row, sample: Sample) -> None:
        """Count what this row holds beside what its sample is made of; RowError for what would be lost."""
        self.rows += 1
        lost: dict[str, str] = {}
        for name, value in row.items():
            if name in self._used and not (name in self._defining and isinstance(sample, Completion)):
                if (is_list(value) or is_object(value)) and name not in self._defining:
                    self._inside(name, value, sample)
            elif is_filled(value):
                self._check_meaning(name, value, sample)
                wanted = self._wanted(name, value, row, sample)
                if wanted is None:
                    self.count(name, value)
                else:
                    lost[name] = wanted
        if lost:
            raise self._lost(lost, row)

    def _check_meaning(self, name: str, value: object, sample: Sample) -> None:
        """RowError for what a template would write, or what says how a row is learned."""
        if isinstance(sample, Pairs):
            return
        key = f"--set 'data.sources.{self.index}.ignore=[{name}]' leaves it out"
        if name in RENDERED and says_something(value):
            raise RowError(f"column {name!r} would be lost: no template is given it", hint=key)
        marks = [mark for mark, names in MEDIA.items() if name in names]
        if marks and any(mark in text for mark in marks for text in sample.texts):
            raise RowError(f"column {name!r} would be lost: only text can be trained on", hint=key)
        if self.is_trained and is_about_learning(name) and says_something(value) and learned(name, value) is not True:
            what = f"column {name!r} ({shortened(value)}) says how the row is learned, and would be lost"
            raise RowError(what, hint=f"{key}; a source has a weight: data.sources.{self.index}.weight")

    def _wanted(self, name: str, value: object, row: Row, sample: Sample) -> str | None:
        """The field that a column is meant for, of this format or ("") of another; None where nothing is lost."""
        plain = plainly(name)
        if isinstance(sample, Pairs):
            return None
        if wanted := self._meant_for.get(plain):
            column = self._column_of[wanted]
            return wanted if column is None or not is_filled(row.get(column)) else None
        if plain not in MEANINGFUL or plain in map(plainly, self.format.fields):
            return None
        text = str(value).strip()
        return None if any(text in each for each in sample.texts) else ""

    def _lost(self, lost: Mapping[str, str], row: Row) -> RowError:
        """The error for filled columns that the model should see: with the options that keep them, which were tried."""
        key, names = f"data.sources.{self.index}", ", ".join(lost)
        ignored = f"--set '{key}.ignore=[{names}]'"
        shown = ", ".join(map(repr, lost))
        what = f"column {shown} is filled and would be lost" if len(lost) == 1 else f"columns {shown} would be lost"
        own = {field: name for name, field in lost.items() if field}
        kept = self._keeping(own, row) if all(lost.values()) else keeping(row, lost, self.source, self.index)
        return RowError(what, hint=f"{kept}, or to leave it out: {ignored}" if kept else f"to leave it out: {ignored}")

    def _keeping(self, fields: Mapping[str, str], row: Row) -> str:
        """The options that map more fields of this format; nothing where the row cannot be read so."""
        try:
            convert_row(self.format, {**self.source.fields, **fields}, row)
        except RowError:
            return ""
        return " ".join(setting(self.index, name, column) for name, column in fields.items())

    def _inside(self, column: str, value: object, sample: Sample) -> None:
        """Count what stands inside a field beside what is read of it; RowError for what would be lost."""
        others: dict[str, object] = {}
        for where, key, inner, owner in leftovers(value, column, self.format.inner_keys):
            role = ROLES.get(str(owner.get(turn_keys(owner)[0])))
            if role == "assistant" and key in (*CALLS, *THOUGHTS):
                continue  # read with the turn
            if role == "tool" and key in RESULTS and isinstance(sample, Conversation) and sample.is_structured:
                continue
            if key in RENDERED or key in RENDERED_OF_TURNS:
                if says_something(inner):
                    raise RowError(f"{where} has {key!r}, which would be lost: write it as text, or remove the key")
                continue
            if is_about_learning(key):
                is_whole = learned(key, inner)
                if role == "assistant" or (role and is_whole is False):
                    continue  # obeyed where the turn was read, and turns of others are context as it is
                if self.is_trained and not role and is_whole is not True:
                    raise RowError(f"{where} has {key!r} = {inner!r}, but is learned as its turn is: remove the key")
            others[f"{NUMBER.sub('[]', where)}.{key}"] = inner
        for name, inner in others.items():
            self.count(name, inner)

    def count(self, name: str, value: object) -> None:
        """Count a row whose column is not used."""
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


def keeping(row: Row, lost: Collection[str], source: SourceConfig, index: int) -> str:
    """The options that read the row in a format which has a field for each of these columns; nothing where none has."""
    for format in FORMATS if not source.fields else ():
        found = {field: column for field, column in guess(format, row.keys(), {}).items() if column}
        if {*format.required} <= found.keys() and {*lost} <= {*found.values()}:
            mapping = {field: column for field, column in found.items() if field != column}
            try:
                convert_row(format, mapping, row)
            except RowError:
                continue
            named = "" if source.format == "auto" else f" --set data.sources.{index}.format={format.name}"
            return options(format, row.keys(), mapping={}, index=index) + named
    return ""


def shortened(value: object) -> str:
    """A value as a piece of a line."""
    text = repr(value)
    return text if len(text) <= SAMPLE_CHARACTERS else f"{text[: SAMPLE_CHARACTERS - 3]}..."
