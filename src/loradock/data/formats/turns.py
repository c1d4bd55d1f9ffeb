"""Lists of chat turns, as `messages`, `conversations` and chat prompts hold them, to messages."""

from __future__ import annotations

import difflib
from typing import Any

from loradock.data.formats.base import (
    Conversation,
    Message,
    Misfit,
    Role,
    Row,
    RowError,
    check_filled,
    check_text,
    is_list,
    is_object,
    optional_text_of,
    type_of,
)

ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
}
"""What a turn may be called, and the role it is: OpenAI's names, then ShareGPT's."""

UNRENDERED: dict[str, object] = {
    "tool_calls": None,
    "function_call": None,
    "reasoning_content": None,
    "reasoning": None,
    "thinking": None,
    "weight": 1,
    "train": True,
    "loss": True,
}
"""Keys of a turn that say something about training and that no sample carries, refused rather than lost; each with the
value that asks for nothing."""

LOST_COLUMNS = ("tools", "functions")
"""Columns that a chat template would render, were they handed to it."""


def messages_of(value: Any, where: str) -> tuple[Message, ...]:
    """The messages of a list of {"role", "content"} or {"from", "value"} objects.

    Raises RowError where a turn is not of that shape, its role is unknown, or it holds what is not text.
    """
    if not is_list(value):
        hint = "turns that are written as JSON inside a text have to be parsed: row[COLUMN] = json.loads(row[COLUMN])"
        raise Misfit(f"{where} is {type_of(value)}, not a list of turns", hint=hint if isinstance(value, str) else None)
    return tuple([_message(turn, f"{where}[{number}]") for number, turn in enumerate(value)])


def conversation(messages: tuple[Message, ...], where: str) -> Conversation:
    """A conversation to learn from: system first if at all, an assistant's turn last, no assistant's turn empty."""
    if not messages:
        raise RowError(f"{where} holds no turns")
    for number, message in enumerate(messages):
        if message.role == "assistant":
            check_filled(message.content, f"{where}[{number}]: the assistant's text")
        elif message.role == "system" and number:
            raise RowError(f"{where}[{number}] is a system turn; only the first turn may be one")
    if messages[-1].role != "assistant":
        if all(message.role != "assistant" for message in messages):
            raise RowError(f"{where} has no assistant turn: there is nothing to train on")
        last = messages[-1].role
        raise RowError(f"{where} ends with a {last} turn, not with the assistant's: remove the turns after it")
    return Conversation(messages)


def with_system(talk: Conversation, row: Row) -> Conversation:
    """The conversation after the text of the row's `system` column, where it has one; not beside a system turn."""
    system = optional_text_of(row, "system")
    if not system:
        return talk
    if talk.messages[0].role == "system":
        raise RowError("there is a 'system' column and a system turn: keep one of them")
    return Conversation((Message("system", system), *talk.messages))


def refuse_tools(row: Row) -> None:
    """RowError where the row describes tools, which no sample carries."""
    for column in LOST_COLUMNS:
        if row.get(column):
            raise RowError(f"{column!r} would be lost: write the tools into the system turn, or remove the column")


def _message(turn: Any, where: str) -> Message:
    if not is_object(turn):
        raise RowError(f"{where} is {type_of(turn)}, not an object with role and content")
    role_key, content_key = ("from", "value") if "from" in turn and "role" not in turn else ("role", "content")
    for key in (role_key, content_key):
        if key not in turn:
            raise RowError(f"{where} has no {key!r}; it has {', '.join(map(str, turn)) or 'nothing'}")
    _refuse_unrendered(turn, where)
    return Message(_role(turn[role_key], where), _content(turn[content_key], where))


def _refuse_unrendered(turn: dict[str, Any], where: str) -> None:
    for key, harmless in UNRENDERED.items():
        if key in turn and turn[key] not in (None, [], "", harmless):
            raise RowError(f"{where} has {key!r}, which would be lost: write it into the text, or remove the key")


def _role(name: Any, where: str) -> Role:
    role = ROLES.get(name) if type(name) is str else None
    if role is not None:
        return role
    if type(name) is not str:
        raise RowError(f"{where}: the role is {type_of(name)}, not text")
    close = difflib.get_close_matches(name.lower(), ROLES, n=1)
    guess = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(ROLES)}"
    raise RowError(f"{where}: unknown role {name!r}; {guess}")


def _content(content: Any, where: str) -> str:
    if is_list(content):
        content = "".join([_part(part, where) for part in content])
    if type(content) is not str:
        raise RowError(f"{where}: the content is {type_of(content)}, not text")
    check_text(content, where)
    return content


def _part(part: Any, where: str) -> str:
    keys = part if is_object(part) else {}
    kind, text = keys.get("type"), keys.get("text")
    if kind == "text" and type(text) is str:
        return text
    found = f"a part of type {kind!r}" if type(kind) is str and kind != "text" else "a part without text"
    raise RowError(f"{where} holds {found}; only text can be trained on")
