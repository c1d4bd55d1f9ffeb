"""The fields of a row: what they hold, and how a message names them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from loradock.text.amounts import some_of
from loradock.text.suggest import did_you_mean

MOST_NAMED = 30
"""Columns that a message lists, and that a field's name is compared with: a table may have 100,000."""


Row = Mapping[str, Any]


LONGEST_PIECE = 40
"""Characters of a value in a message."""


@dataclass(frozen=True, kw_only=True)
class RowsChange:
    """A change of rows, for a hint: as a filter of jq, and as a method of `datasets.Dataset` for what is not JSON.

    COLUMN in them stands for `column`, quoted.
    """

    column: str
    jq: str
    method: str


class RowError(ValueError):
    """A row that cannot be used; the message names the field and what it should hold, `hint` what to type.

    `change`: what makes rows that can be used of the file, where that is no setting. `ignorable`: the column that is
    wrong, where rows can do without.
    """

    def __init__(
        self, what: str, *, hint: str | None = None, change: RowsChange | None = None, ignorable: str = ""
    ) -> None:
        super().__init__(what)
        self.hint, self.change, self.ignorable = hint, change, ignorable


class Misfit(RowError):
    """A column that is not there or holds another type: where no row fits, the configuration named the wrong one."""


def text_of(row: Row, field: str) -> str:
    """The text in `field`, which must be there; it may be empty."""
    value = value_of(row, field)
    if type(value) is not str:
        raise Misfit(f"{field} is {type_of(value)}, not text")
    check_text(value, field)
    return value


def optional_text_of(row: Row, field: str) -> str:
    """The text in `field`; empty where the column is missing or null."""
    return "" if row.get(field) is None else text_of(row, field)


def value_of(row: Row, field: str) -> Any:
    """What `field` holds; RowError names the columns that are there where it is missing."""
    if field not in row:
        raise Misfit(f"no column {field!r}; {columns_of_row(field, row)}")
    return row[field]


def check_text(value: str, where: str) -> None:
    """Refuse what no tokenizer can take in: lone surrogates, and NUL."""
    if "\0" in value:
        raise RowError(f"{where} holds a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x} at character {error.start + 1}"
            raise RowError(f"{where} holds half of a surrogate pair ({half})") from None


def check_filled(value: str, where: str) -> str:
    """Refuse a text that is to be learned and holds nothing but white space; returns it."""
    if not value or value.isspace():
        raise RowError(f"{where} is empty: there is nothing to train on")
    return value


def listed(names: Collection[object]) -> str:
    """Columns in a message: the first of them, and how many more."""
    return some_of(names, most=MOST_NAMED)


def is_filled(value: object) -> bool:
    """True where a column says something: neither null, nor empty, nor white space, nor not a number."""
    if isinstance(value, str):
        return bool(value) and not value.isspace()
    return value is not None and value not in ([], {}) and not (isinstance(value, float) and math.isnan(value))


def is_list(value: object) -> TypeGuard[list[Any]]:
    """True for a list."""
    return type(value) is list


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """True for an object of named fields."""
    return type(value) is dict


def type_of(value: object) -> str:
    """A value's type in the words of a data file, with its article."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        str: "text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), f"of type {type(value).__name__}")


def plainly_said(value: object) -> str:
    """What a column holds, for a message: a text or a number as a piece of a line, of all else the type."""
    if not isinstance(value, str | int | float):
        return type_of(value)
    text = repr(value)
    return text if len(text) <= LONGEST_PIECE else f"{text[: LONGEST_PIECE - 3]}..."


def columns_of_row(field: str, row: Row) -> str:
    """The columns that a row has, and the one that `field` may be meant to be, for a message."""
    return "; ".join(filter(None, (f"the row has {listed(row) or 'nothing'}", did_you_mean(field, map(str, row)))))
