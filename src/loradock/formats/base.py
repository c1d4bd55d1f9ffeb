"""The type of a data format: how one row of a source becomes a sample.

A format is a module with one `FORMAT` object. `detect(columns)` says whether a row with these columns is of this
format; `convert(row)` makes a `Sample` or raises `RowError` with what is wrong in words that name the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class RowError(ValueError):
    """A row that cannot be used; the message names the field and what it should hold."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that a chat template renders. Alpaca rows are conversations too: user, assistant."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """Raw text without a template: `prompt` is context, `completion` is learned. Plain text has an empty prompt."""

    prompt: str
    completion: str


Sample = Conversation | Completion
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A data format.

    `fields` are the names that `convert` reads (each can be mapped to another column by the config); those in
    `required` must be present. `convert` gets a row whose columns are already renamed to `fields`.
    """

    name: str
    fields: tuple[str, ...]
    required: tuple[str, ...]
    convert: Callable[[Row], Sample]
    example: str

    def detect(self, columns: frozenset[str]) -> bool:
        """True where every required field is among the columns."""
        return columns.issuperset(self.required)
