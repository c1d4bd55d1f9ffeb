"""Lists of chat turns, as `messages`, `conversations` and chat prompts hold them, to messages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from loradock.data.formats.base import Conversation, Message, Role
from loradock.data.formats.fields import (
    Misfit,
    Row,
    RowError,
    RowsChange,
    check_filled,
    check_text,
    is_list,
    is_object,
    optional_text_of,
    type_of,
)
from loradock.data.formats.keys import TURN_KEYS, says_something, turn_is_learned, turn_keys
from loradock.data.formats.tools import calls_of, calls_of_turn, merged
from loradock.text.suggest import did_you_mean

KEYS_READ = 2
ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "function": "tool",
    "tool_response": "tool",
    "environment": "tool",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""What a turn may be called, and the role it is: OpenAI's names, then ShareGPT's, ms-swift's and others'."""
CALLING = ("function_call", "tool_call")
"""Turns whose text is calls, as JSON."""
CALLS = ("tool_calls", "function_call")
SPOKEN = ("system", "user", "human", "assistant", "gpt", "bot")
"""Names of roles that may be keys of a question with its answer, in the order of speaking."""
ANSWERING = tuple(name for name, role in ROLES.items() if role == "assistant")
ANSWERS = tuple(name for name in SPOKEN if name in ANSWERING)
ROLE_KEYS = tuple(dict.fromkeys(role for role, _ in TURN_KEYS))


def _up_to_the_last(*, answer: bool) -> RowsChange:
    """The rows with the turns behind the last answer taken away, or behind the last turn that is none."""
    return RowsChange(
        column="messages",
        jq=f"(.COLUMN | arrays) |= ((map(({' // '.join(f'.{key}?' for key in ROLE_KEYS)} // "
        f'if ({" // ".join(f".{key}?" for key in ANSWERS)} // "") != "" then "{ANSWERS[0]}" else "" end) | tostring '
        f"| ascii_downcase | IN({json.dumps(ANSWERING)[1:-1]})) | rindex({json.dumps(answer)})) as $last "
        "| if $last then .[:$last + 1] else . end)",
        method="map(lambda r: {COLUMN: r[COLUMN] and r[COLUMN][:max((i for i, t in enumerate(r[COLUMN], 1) if "
        f"str(next(filter(None, map(t.get, {ROLE_KEYS})), any(map(t.get, {ANSWERS})) and {ANSWERS[0]!r})).lower() "
        f"{'in' if answer else 'not in'} {ANSWERING}), default=None)]"
        "})",
    )


UP_TO_THE_ANSWER = _up_to_the_last(answer=True)
"""A row whose last turn is the assistant's stays as it is, and one without such a turn: its command is for a file."""
UP_TO_THE_QUESTION = _up_to_the_last(answer=False)
"""A row whose last turn is not the assistant's stays as it is, likewise."""
RESULTS = ("name", "tool_call_id")
"""What a tool's turn says beside its text."""
THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def messages_of(value: Any, where: str) -> tuple[Message, ...]:
    """The messages of a list of {"role", "content"}, {"from", "value"} or like objects (`keys.TURN_KEYS`).

    Raises RowError where a turn is not of that shape, its role is unknown, or it holds what is not text.
    """
    if not is_list(value):
        method = "map(lambda r: {COLUMN: __import__('json').loads(r[COLUMN])})"
        parsed = RowsChange(column=where, jq=".COLUMN |= fromjson", method=method)
        change = parsed if isinstance(value, str) and _is_json_list(value) else None
        raise Misfit(f"{where} is {type_of(value)}, not a list of turns", change=change)
    return merged([_message(turn, f"{where}[{number}]") for number, turn in enumerate(spoken(value))])


def spoken(turns: list[Any]) -> list[Any]:
    """The turns; a question with its answer, by the names of roles ({"human": ..., "assistant": ...}), is two."""
    single_turns: list[Any] = []
    for turn in turns:
        if is_object(turn) and turn and set(turn) <= {*SPOKEN}:
            single_turns += [{"role": name, "content": turn[name]} for name in SPOKEN if says_something(turn.get(name))]
        else:
            single_turns.append(turn)
    return single_turns


def _is_json_list(text: str) -> bool:
    try:
        return is_list(json.loads(text))
    except (ValueError, RecursionError):
        return False


def refuse_answered(prompt: tuple[Message, ...], before: Role, where: str) -> None:
    """RowError for a prompt that ends with an answer where another follows; a call of a tool is none.

    `before`: whose turn is the first of what follows; `where`: the prompt's column.
    """
    if prompt and prompt[-1].role == before == "assistant" and not prompt[-1].calls:
        raise RowError(
            f"{where} ends with an answer, and another follows it: a prompt ends with what is answered",
            change=replace(UP_TO_THE_QUESTION, column=where),
        )


def conversation(messages: tuple[Message, ...], where: str) -> Conversation:
    """A conversation to learn from: an assistant's turn last, no assistant's turn empty.

    What follows the last turn that is learned is left out: nothing is learned of it, or by it.
    """
    if not messages:
        raise RowError(f"{where} holds no turns")
    for number, message in enumerate(messages):
        if message.role == "assistant" and not message.is_structured:
            check_filled(message.content, f"{where}[{number}]: the assistant's text")
    if messages[-1].role != "assistant":
        if all(message.role != "assistant" for message in messages):
            raise RowError(f"{where} has no assistant turn: there is nothing to train on")
        last = messages[-1].role
        what = f"{where} ends with a {last} turn, not with the assistant's: remove the turns after it"
        raise RowError(what, change=replace(UP_TO_THE_ANSWER, column=where))
    learned = [number for number, each in enumerate(messages) if each.role == "assistant" and each.is_learned]
    if not learned:
        raise RowError(f"{where} says of every assistant turn that it is not learned: leave the row out")
    return Conversation(messages[: learned[-1] + 1])


def with_system(talk: Conversation, row: Row) -> Conversation:
    """The conversation after the text of the row's `system` column, where it has one; not beside a system turn."""
    system = optional_text_of(row, "system")
    if not system:
        return talk
    if talk.messages[0].role == "system":
        raise RowError("there is a 'system' column and a system turn: keep one of them")
    return replace(talk, messages=(Message("system", system), *talk.messages))


def _message(turn: Any, where: str) -> Message:
    if not is_object(turn):
        raise Misfit(f"{where} is {type_of(turn)}, not an object with role and content")
    role_key, content_key = turn_keys(turn)
    if content_key not in turn and any(says_something(turn.get(key)) for key in CALLS):
        turn = {**turn, content_key: None}
    for key in (role_key, content_key):
        if key not in turn:
            raise RowError(f"{where} has no {key!r}; it has {', '.join(map(str, turn)) or 'nothing'}")
    role = _role(turn[role_key], where)
    if len(turn) == KEYS_READ and turn[role_key] not in CALLING:
        return Message(role, _content(turn[content_key], where))
    if role == "assistant":
        return _assistant(turn, where, role=turn[role_key], content=turn[content_key])
    content = _content(turn[content_key], where)
    if role == "tool":
        name, call_id = (turn.get(key) if type(turn.get(key)) is str else "" for key in RESULTS)
        return Message(role, content, tool_name=name or "", call_id=call_id or "")
    return Message(role, content)


def _assistant(turn: dict[str, Any], where: str, *, role: str, content: object) -> Message:
    """An assistant's turn with what its keys say beside its text: calls, a thought, whether it is learned."""
    is_learned = turn_is_learned(turn, where)
    if role in CALLING:
        return Message("assistant", "", is_learned, calls=calls_of(content, where))
    calls = calls_of_turn(turn, where)
    thoughts = {key: turn[key] for key in THOUGHTS if says_something(turn.get(key))}
    for key, thought in thoughts.items():
        if type(thought) is not str:
            raise RowError(f"{where}.{key} is {type_of(thought)}, not text")
        check_text(thought, f"{where}.{key}")
    if len({*thoughts.values()}) > 1:
        raise RowError(f"{where} has several thoughts ({', '.join(thoughts)}): keep one of them")
    text = "" if content is None and (calls or thoughts) else _content(content, where)
    return Message("assistant", text, is_learned, calls=calls, thought=next(iter(thoughts.values()), ""))


def _role(name: Any, where: str) -> Role:
    role = ROLES.get(name.lower()) if type(name) is str else None
    if role is not None:
        return role
    if type(name) is not str:
        raise RowError(f"{where}: the role is {type_of(name)}, not text")
    remedy = did_you_mean(name, ROLES) or f"known: {', '.join(ROLES)}"
    raise RowError(f"{where}: unknown role {name!r}; {remedy}")


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
