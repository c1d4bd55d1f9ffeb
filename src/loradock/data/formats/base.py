"""The type of a data format: how one row of a source becomes a sample.

A format is a module with one `FORMAT` object. `detect(columns)` says whether a row with these columns is of this
format; `convert(row)` makes a `Sample` or raises `RowError` with what is wrong in words that name the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from loradock.catalog.samples import SampleKind
from loradock.data.formats.fields import Misfit, Row, RowError, columns_of_row

THOUGHT_END = "</think>"
"""Of a thought that stands in the text of an answer."""
Role = Literal["system", "user", "assistant", "tool"]


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
    def has_thought(self) -> bool:
        """Whether it has a thought, of its own or in the text of an answer."""
        return bool(self.thought) or (self.role == "assistant" and THOUGHT_END in self.content)

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
    """Two answers of one prompt, each with it: the one that is preferred, and another.

    `margin`: by how much it is better, as the row says; 0 where it says nothing.
    """

    chosen: Conversation | Completion
    rejected: Conversation | Completion
    margin: float = 0.0

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


@dataclass(frozen=True, kw_only=True)
class Format:
    """A data format.

    `fields` are the names that `convert` reads (each can be mapped to another column by the config); those in
    `required` must be present. `convert` gets a row whose columns are already renamed to `fields`. `kind`: what its
    rows become. Where rows may be answered, too (`generate`, `evaluate`), `answer` is the field that training learns,
    or `turns` the field whose last turns are; `stand_in` is what stands for an answer that is not known yet. `fits`
    says of a row with the required fields whether its values are such as are recognised without being asked for.
    `is_extra`: a row that is a sample of a format of kind "rows", too, is taken for one of these.
    `as_turns`: which field (of format `turned`, else of this one) reads each field of text as turns.
    `inner_keys`: what `convert` reads of objects within its fields, besides turns; the rest is reported as not used.
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
    is_extra: bool = False
    as_turns: Mapping[str, str] | None = None
    turned: str = ""
    inner_keys: frozenset[str] = frozenset()

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
            raise Misfit(f"no column {column!r} (field {field!r}); {columns_of_row(column, row)}")
    try:
        return format.convert(renamed(mapping, row))
    except RowError as error:
        shown = ", ".join(f"{field} = {column}" for field, column in mapping.items())
        change = error.change and replace(error.change, column=mapping.get(error.change.column, error.change.column))
        ignorable = mapping.get(error.ignorable, error.ignorable)
        what = f"{error} (with fields {shown})"
        raise type(error)(what, hint=error.hint, change=change, ignorable=ignorable) from None


def renamed(mapping: Mapping[str, str], row: Row) -> dict[str, Any]:
    """The row by the names of fields; a column that is mapped is not read again under its own name."""
    own = {name: value for name, value in row.items() if name not in mapping.values()}
    return own | {field: row[column] for field, column in mapping.items() if column in row}
