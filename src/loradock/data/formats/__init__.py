"""Data formats, one a shape of row. To add one: a module with a `Format`, and its line in `catalog/formats.py`.

`docs/adding.md` walks through it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from loradock.catalog import formats
from loradock.data.formats.base import (
    Completion,
    Conversation,
    Format,
    Message,
    Pairs,
    Row,
    RowError,
    Sample,
    convert_row,
    renamed,
)
from loradock.data.formats.guess import Undetected, plainly, undetected
from loradock.errors import ConfigError
from loradock.text.suggest import nearest


def _load(module: str, name: str) -> Format:
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


FORMATS: tuple[Format, ...] = tuple(_load(*place.split(":")) for place in formats.FORMATS.values())
SHOWN = tuple(sorted(FORMATS, key=lambda format: (format.kind == "pairs", format.name in formats.SELDOM)))
"""As messages list them: rows to answer from first, what is seldom met last of its kind."""
PASSAGES = {field for format in FORMATS if format.kind == "pairs" for field in format.required} - {"query", "messages"}
"""Columns that only rows to embed have; without one of them no message speaks of their formats."""

__all__ = [
    "FORMATS",
    "Completion",
    "Conversation",
    "Format",
    "Message",
    "Pairs",
    "RowError",
    "Sample",
    "Undetected",
    "convert_row",
    "detect",
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


def detect(row: Row, *, mapping: Mapping[str, str] | None = None, index: int = 0) -> Format:
    """The first format whose required fields are all there, as columns or through `mapping` (field -> column).

    Only formats that have every mapped field are looked at. Raises Undetected (a RowError) that lists the formats;
    its `hint` is a `--set` for source number `index` that would make the nearest one fit.
    """
    mapping = mapping or {}
    fields = frozenset(renamed(mapping, row))
    for format in FORMATS:
        if set(mapping).issubset(format.fields) and format.detect(fields):
            return format
    embeds = any(plainly(column) in PASSAGES for column in row)
    shown = [format for format in SHOWN if embeds or format.kind != "pairs"]
    raise undetected(shown, row, mapping=mapping, index=index)
