"""Our rows beside those that another tool prepared of the same data set: ids, and which of them are learned.

A row of theirs counts from its first token to its last, without padding. Rows are found by their ids wherever they
stand, since tools shuffle what they prepare. The label of a row's first token is not compared: nothing predicts it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from loradock.config.sections.data import SourceConfig
from loradock.data import read
from loradock.data.collate import IGNORED, Array
from loradock.data.formats.fields import listed, type_of
from loradock.data.prepared import Prepared
from loradock.errors import DataError

SHOWN = 3
"""Differences of a kind that are described."""


class TokenisedRow(NamedTuple):
    """Token ids int32 [tokens], bool [tokens] of those that are learned, and where the row is from."""

    ids: Array
    is_learned: Array
    place: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two rows that part at `token`, from 0. `ours`, `theirs`: that token there, or None behind the end of a row.

    The places are where the rows are from; `learned_here`, `learned_there`: whether the token is learned.
    """

    place: str
    their_place: str
    token: int
    ours: int | None
    theirs: int | None
    learned_here: bool
    learned_there: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How many rows there are, and how many are the same. `left_out`: longer than the run's longest length here.

    `other_labels`: rows with the same ids of which other tokens are learned; `other_ids`: rows of theirs with ids that
    no row has here, beside what is left here in the order of the rows. Of each the first are in `differences`.
    """

    rows: int
    their_rows: int
    equal: int
    other_labels: int
    other_ids: int
    left_out: int
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same rows."""
        return self.equal == self.rows == self.their_rows


def rows_of(prepared: Prepared, *, max_length: int, cuts: bool) -> Iterator[TokenisedRow | None]:
    """The prepared rows as a run has them: `cuts` a longer one, or None in its place."""
    for index in range(prepared.rows):
        ids, is_learned = prepared.row(index, length=max_length if cuts else None)
        yield None if len(ids) > max_length else TokenisedRow(ids, is_learned, prepared.place(index))


def their_rows(source: SourceConfig) -> Iterator[TokenisedRow]:
    """Rows with input_ids and labels. DataError for what holds none, or rows of another kind."""
    for line, row, problem in read.read(source):
        place = f"{source.path}, row {line}" if line else source.path
        if row is None:
            raise DataError(f"{place}: {problem}", hint="name a directory or a file of rows that a tool has tokenised")
        yield their_row(row, place)


def their_row(row: Mapping[str, Any], place: str) -> TokenisedRow:
    """One of them, without its padding. DataError where it is not of numbers."""
    columns = ("input_ids", "labels")
    if missing := [name for name in columns if name not in row]:
        what = f"{place}: no column {missing[0]}: the columns are {listed(row) or 'none'}"
        raise DataError(what, hint="name the directory of rows that the tool has tokenised, with input_ids and labels")
    names = (*columns, *(["attention_mask"] if row.get("attention_mask") is not None else []))
    values = {name: row[name] for name in names}
    for name, value in values.items():
        if not isinstance(value, list):
            raise DataError(f"{place}: {name} is {type_of(value)}, not a list of token ids", hint="tokenise it again")
        if wrong := [each for each in value if type(each) is not int]:
            what = f"{place}: {name} holds {type_of(wrong[0])} ({wrong[0]!r:.40}), not a token id"
            raise DataError(what, hint="tokenise it again")
        if len(value) != len(values["input_ids"]):
            what = f"{place}: {len(value):,} {name} beside {len(values['input_ids']):,} input_ids"
            raise DataError(what, hint="tokenise it again")
    ids, labels = (np.array(values[name], dtype=np.int64) for name in columns)
    is_real = np.array(values["attention_mask"]) != 0 if "attention_mask" in values else np.ones(len(ids), dtype=bool)
    return TokenisedRow(ids[is_real].astype(np.int32), without_first(labels[is_real] != IGNORED), place)


def without_first(is_learned: Array) -> Array:
    """The same, the first token not learned."""
    return np.concatenate([is_learned[:1] & False, is_learned[1:]])


def compare(rows: Iterable[TokenisedRow | None], theirs: Iterable[TokenisedRow]) -> Comparison:
    """Which rows both sides have."""
    waiting: dict[bytes, list[TokenisedRow]] = defaultdict(list)
    count = left_out = 0
    for row in rows:
        count += row is not None
        left_out += row is None
        if row is not None:
            waiting[row.ids.tobytes()].append(row)
    their_count = equal = other_labels = 0
    unlike: list[tuple[TokenisedRow, TokenisedRow]] = []
    unknown: list[TokenisedRow] = []
    for row in theirs:
        their_count += 1
        alike = waiting.get(row.ids.tobytes(), [])
        same = next((each for each in alike if np.array_equal(each.is_learned, row.is_learned)), None)
        if not alike:
            unknown.append(row)
            continue
        equal += same is not None
        other_labels += same is None
        if same is None and len(unlike) < SHOWN:
            unlike.append((alike[0], row))
        alike.pop(next((place for place, each in enumerate(alike) if each is same), 0))
    remaining = [row for alike in waiting.values() for row in alike]
    pairs = [*unlike, *list(zip(remaining, unknown, strict=False))[:SHOWN]]
    return Comparison(
        rows=count,
        their_rows=their_count,
        equal=equal,
        other_labels=other_labels,
        other_ids=len(unknown),
        left_out=left_out,
        differences=tuple(parted(*pair) for pair in pairs),
    )


def parted(row: TokenisedRow, theirs: TokenisedRow) -> Difference:
    """Where two rows that differ part."""
    length = min(len(row.ids), len(theirs.ids))
    differs = (row.ids[:length] != theirs.ids[:length]) | (row.is_learned[:length] != theirs.is_learned[:length])
    token = int(differs.argmax()) if differs.any() else length
    return Difference(
        place=row.place,
        their_place=theirs.place,
        token=token,
        ours=int(row.ids[token]) if token < len(row.ids) else None,
        theirs=int(theirs.ids[token]) if token < len(theirs.ids) else None,
        learned_here=token < len(row.ids) and bool(row.is_learned[token]),
        learned_there=token < len(theirs.ids) and bool(theirs.is_learned[token]),
    )
