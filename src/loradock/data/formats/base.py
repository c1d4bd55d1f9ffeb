"""The type of a data format: how one row of a source becomes a sample.

A format is a module with one `FORMAT` object. `detect(columns)` says whether a row with these columns is of this
format; `convert(row)` makes a `Sample` or raises `RowError` with what is wrong in words that name the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeGuard

from loradock.catalog.samples import SampleKind
from loradock.text.suggest import did_you_mean

MOST_NAMED = 30
"""Columns that a message lists, and that a field's name is compared with: a table may have 100,000."""
Role = Literal["system", "user", "assistant", "tool"]


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

    `change`: what makes rows that can be used of the file, where that is no setting.
    """

    def __init__(self, what: str, *, hint: str | None = None, change: RowsChange | None = None) -> None:
        super().__init__(what)
        self.hint, self.change = hint, change


class Misfit(RowError):
    """A column that is not there or holds another type: where no row fits, the configuration named the wrong one."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by an assistant; `arguments` are an object, `call_id` is "" where the row gives none."""

    name: str
    arguments: dict[str, Any]
    call_id: str = ""

    @property
    def shown(self) -> str:
        """As people read it."""
        return f"{self.name}({json.dumps(self.arguments, ensure_ascii=False)})"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `is_learned` False: the row says that it is context, though an assistant's.

    An assistant's turn may have `calls`, and a `thought` before what it says; a tool's says whose result it is
    (`tool_name`, `call_id`).
    """

    role: Role
    content: str
    is_learned: bool = True
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    tool_name: str = ""
    call_id: str = ""

    @property
    def is_structured(self) -> bool:
        """Whether a template is given more of it than a role and a text."""
        return bool(self.calls or self.thought)

    @property
    def said(self) -> str:
        """All that it says as one text: thought, content and calls."""
        calls = [call.shown for call in self.calls]
        return "\n".join(filter(None, (self.thought, self.content, *calls))) if self.is_structured else self.content


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns that a chat template renders. Alpaca rows are conversations too: user, assistant.

    The first `given` messages are the prompt of a prompt/completion row: what the assistant says there is context.
    `tools` are the definitions of what may be called, in OpenAI's form.
    """

    messages: tuple[Message, ...]
    given: int = 0
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def is_structured(self) -> bool:
        """Whether a template is given more than the roles and texts of its turns."""
        return bool(self.tools) or any(message.is_structured for message in self.messages)

    @property
    def texts(self) -> list[str]:
        """All texts of the sample, in their order: a face of every sample."""
        return [message.said for message in self.messages]

    @property
    def turns(self) -> tuple[Message, ...]:
        """The sample as turns, the answer last: a face of every sample."""
        return self.messages

    @property
    def answered(self) -> Conversation | Completion | None:
        """A prompt with its answer, the better one of several; None where nothing is answered. Every sample has it."""
        return self


@dataclass(frozen=True, slots=True)
class Completion:
    """Raw text without a template: `prompt` is context, `completion` is learned. Plain text has an empty prompt."""

    prompt: str
    completion: str

    @property
    def texts(self) -> list[str]:
        """See `Conversation`."""
        return [self.prompt, self.completion]

    @property
    def turns(self) -> tuple[Message, ...]:
        """See `Conversation`."""
        return Message("user", self.prompt), Message("assistant", self.completion)

    @property
    def answered(self) -> Conversation | Completion | None:
        """See `Conversation`."""
        return self


@dataclass(frozen=True, slots=True)
class Side:
    """A text to embed, and the instruction that is read before it; empty where there is none."""

    instruction: str
    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """A query, the passages that answer it (at least one), and hard negatives: passages that do not."""

    query: Side
    positives: tuple[Side, ...]
    negatives: tuple[Side, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        """All of them: the query, positives, negatives."""
        return (self.query, *self.positives, *self.negatives)

    @property
    def texts(self) -> list[str]:
        """See `Conversation`."""
        return [side.text for side in self.sides]

    @property
    def turns(self) -> tuple[Message, ...]:
        """See `Conversation`; a query, and the first passage that answers it."""
        return Message("user", self.query.text), Message("assistant", self.positives[0].text)

    @property
    def answered(self) -> Conversation | Completion | None:
        """See `Conversation`."""
        return None


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers of one prompt, each with it: the one that is preferred, and another."""

    chosen: Conversation | Completion
    rejected: Conversation | Completion

    @property
    def texts(self) -> list[str]:
        """See `Conversation`."""
        return [*self.chosen.texts, *self.rejected.texts]

    @property
    def turns(self) -> tuple[Message, ...]:
        """See `Conversation`; the rejected answer behind the chosen one."""
        return (*self.chosen.turns, *self.rejected.turns[-1:])

    @property
    def answered(self) -> Conversation | Completion | None:
        """See `Conversation`."""
        return self.chosen


@dataclass(frozen=True, slots=True)
class Judgement:
    """An answer with its prompt, and whether it is desirable."""

    answer: Conversation | Completion
    is_desirable: bool

    @property
    def texts(self) -> list[str]:
        """See `Conversation`."""
        return self.answer.texts

    @property
    def turns(self) -> tuple[Message, ...]:
        """See `Conversation`."""
        return self.answer.turns

    @property
    def answered(self) -> Conversation | Completion | None:
        """See `Conversation`."""
        return self.answer


Sample = Conversation | Completion | Pairs | PreferencePair | Judgement


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A data format.

    `fields` are the names that `convert` reads (each can be mapped to another column by the config); those in
    `required` must be present. `convert` gets a row whose columns are already renamed to `fields`. `kind`: what its
    rows become. Where rows may be answered, too (`generate`, `evaluate`), `answer` is the field that training learns,
    or `turns` the field whose last turns are; `stand_in` is what stands for an answer that is not known yet. `fits`
    says of a row with the required fields whether its values are such as are recognised without being asked for.
    `as_turns`: which field (of format `turned`, else of this one) reads each field of text as turns.
    """

    name: str
    fields: tuple[str, ...]
    required: tuple[str, ...]
    convert: Callable[[Row], Sample]
    example: str
    kind: SampleKind = "rows"
    answer: str | None = None
    turns: str | None = None
    stand_in: Any = "-"
    fits: Callable[[Row], bool] | None = None
    as_turns: Mapping[str, str] | None = None
    turned: str = ""

    @property
    def optional(self) -> tuple[str, ...]:
        """The fields that a row may do without."""
        return tuple(field for field in self.fields if field not in self.required)

    def detect(self, columns: frozenset[str]) -> bool:
        """True where every required field is among the columns."""
        return columns.issuperset(self.required)


def convert_row(format: Format, mapping: Mapping[str, str], row: Row) -> Sample:
    """The sample of one row; `mapping` is the format's field name -> the column that holds it.

    Raises RowError in the words of the user's columns.
    """
    if not mapping:
        return format.convert(row)
    for field, column in mapping.items():
        if column not in row and field in format.required:
            raise Misfit(f"no column {column!r} (field {field!r}); {_present(column, row)}")
    try:
        return format.convert(renamed(mapping, row))
    except RowError as error:
        shown = ", ".join(f"{field} = {column}" for field, column in mapping.items())
        change = error.change and replace(error.change, column=mapping.get(error.change.column, error.change.column))
        raise type(error)(f"{error} (with fields {shown})", hint=error.hint, change=change) from None


def renamed(mapping: Mapping[str, str], row: Row) -> dict[str, Any]:
    """The row by the names of fields; a column that is mapped is not read again under its own name."""
    own = {name: value for name, value in row.items() if name not in mapping.values()}
    return own | {field: row[column] for field, column in mapping.items() if column in row}


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
        raise Misfit(f"no column {field!r}; {_present(field, row)}")
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
    more = len(names) - MOST_NAMED
    return ", ".join(map(str, islice(names, MOST_NAMED))) + (f" and {more:,} more" if more > 0 else "")


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


def _present(field: str, row: Row) -> str:
    return "; ".join(filter(None, (f"the row has {listed(row) or 'nothing'}", did_you_mean(field, map(str, row)))))
