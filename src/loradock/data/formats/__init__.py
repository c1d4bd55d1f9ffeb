"""Data formats, one a shape of row. To add one: a module with a `Format`, and its line in `catalog/formats.py`.

`docs/adding.md` walks through it.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping

from loradock.catalog import formats
from loradock.catalog.samples import SampleKind
from loradock.data.formats.base import (
    Completion,
    Conversation,
    Format,
    Judgement,
    Message,
    Pairs,
    PreferencePair,
    Sample,
    convert_row,
    renamed,
)
from loradock.data.formats.fields import Row, RowError
from loradock.data.formats.guess import Undetected, plainly, undetected
from loradock.errors import ConfigError
from loradock.text.suggest import nearest


def _load(module: str, name: str) -> Format:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


FORMATS: tuple[Format, ...] = tuple(_load(*place.split(":")) for place in formats.FORMATS.values())
COMMON = frozenset(("query", "messages"))
"""Columns that rows of several kinds have."""

__all__ = [
    "FORMATS",
    "Completion",
    "Conversation",
    "Format",
    "Judgement",
    "Message",
    "Pairs",
    "PreferencePair",
    "RowError",
    "Sample",
    "Undetected",
    "convert_row",
    "detect",
    "extra_of",
    "named",
    "renamed",
]


def named(name: str, *, index: int = 0) -> Format:
    """The format of that name; ConfigError with the nearest name where there is none."""
    for format in FORMATS:
        if format.name == name:
            return format
    names = [format.name for format in FORMATS]
    raise ConfigError(
        f"unknown data format {name!r}; known: auto, {', '.join(names)}",
        hint=f"--set data.sources.{index}.format={nearest(name, names) or 'auto'}",
    )


def detect(
    row: Row, *, mapping: Mapping[str, str] | None = None, index: int = 0, kinds: Collection[SampleKind] = ()
) -> Format:
    """The first format whose required fields are all there, as columns or through `mapping` (field -> column).

    Only formats that have every mapped field are looked at. Raises Undetected (a RowError) that lists the formats;
    its `hint` is a `--set` for source number `index` that would make the nearest one fit, one of `kinds` if it can.
    """
    mapping = mapping or {}
    by_field = renamed(mapping, row)
    formats_of_row = [each for each in FORMATS if set(mapping).issubset(each.fields) and _fits(each, by_field)]
    for first in formats_of_row[:1]:
        plain = (format for format in formats_of_row if format.kind == "rows" and _takes(format, by_field))
        return next(plain, first) if first.is_extra else first
    raise undetected(shown_for(row, kinds), row, mapping=mapping, index=index, kinds=kinds)


def extra_of(row: Row, kinds: Collection[SampleKind]) -> Format | None:
    """The format of one of the kinds that the row is of, too, where it is taken for one of another (`is_extra`)."""
    return next((format for format in FORMATS if format.is_extra and format.kind in kinds and _fits(format, row)), None)


def _fits(format: Format, row: Row) -> bool:
    return format.detect(frozenset(row)) and (format.fits is None or format.fits(row))


def _takes(format: Format, row: Row) -> bool:
    try:
        format.convert(row)
    except RowError:
        return False
    return True


def shown_for(row: Row, kinds: Collection[SampleKind] = ()) -> list[Format]:
    """The formats that a message speaks of: rows to answer first (those seldom met last of them).

    Others where the row has a column of theirs alone, or where they are of `kinds`.
    """
    columns = {plainly(column) for column in row}
    plain = [format for format in FORMATS if format.kind == "rows"]
    plain.sort(key=lambda format: format.name in formats.SELDOM)
    own = {format.kind: set[str]() for format in FORMATS if format.kind != "rows"}
    for format in FORMATS:
        if format.kind in own:
            own[format.kind] |= {*format.required} - COMMON
    met = {kind for kind, names in own.items() if kind in kinds or not columns.isdisjoint(names)}
    return [*plain, *(each for each in FORMATS if each.kind in met)]
