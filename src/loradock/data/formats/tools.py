"""What rows say of tools: definitions, calls and results, as OpenAI, ShareGPT, Hermes, ms-swift and xLAM write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loradock.data.formats.base import Conversation, Message, ToolCall
from loradock.data.formats.fields import Row, RowError, check_text, is_filled, is_list, is_object, type_of
from loradock.data.formats.keys import says_something

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
RESPONSE = re.compile(r"\s*<tool_response>\s*(.*?)\s*</tool_response>\s*", re.DOTALL)
DEFINED_IN_TEXT = "<tools>"
COLUMNS = ("tools", "functions")
"""Columns of definitions: OpenAI's name, and its older one."""


def with_tools(talk: Conversation, row: Row) -> Conversation:
    """The conversation with the definitions of its row.

    Where they stand in the system text already (Hermes: `<tools>`), that stays as it is; else calls and results that
    are written as text (`<tool_call>`) are read as such.
    """
    columns = [name for name in COLUMNS if says_something(row.get(name))]
    if not columns:
        return talk
    if len(columns) > 1:
        raise RowError("there are columns 'tools' and 'functions': keep one of them")
    tools = definitions_of(row[columns[0]], columns[0])
    if any(message.role == "system" and DEFINED_IN_TEXT in message.content for message in talk.messages):
        return talk
    return replace(talk, messages=tuple(map(_read_from_text, talk.messages)), tools=tools)


def definitions_of(value: object, where: str) -> tuple[dict[str, Any], ...]:
    """The definitions in a list or its JSON text, each as {"type": "function", "function": {...}}."""
    parsed = parsed_json(value, where)
    found: list[dict[str, Any]] = []
    for number, each in enumerate(parsed if is_list(parsed) else [parsed]):
        tool = parsed_json(each, f"{where}[{number}]")
        function = tool.get("function", tool) if is_object(tool) else None
        if not is_object(tool) or not is_object(function) or type(function.get("name")) is not str:
            raise RowError(f'{where}[{number}] is not a definition of a tool: {{"name": ..., "parameters": ...}}')
        is_wrapped = "function" in tool
        found.append({"type": "function", **tool} if is_wrapped else {"type": "function", "function": function})
    _check_texts(found, where)
    return tuple(found)


def calls_of(value: object, where: str) -> tuple[ToolCall, ...]:
    """The calls in a list, an object or the JSON text of one; RowError for what is no call."""
    parsed = parsed_json(value, where)
    calls = parsed if is_list(parsed) else [parsed]
    return tuple([_call(each, f"{where}[{number}]") for number, each in enumerate(calls)])


def calls_of_turn(turn: Mapping[str, Any], where: str) -> tuple[ToolCall, ...]:
    """The calls in the keys of an assistant's turn: `tool_calls`, or the older `function_call`."""
    keys = [key for key in ("tool_calls", "function_call") if says_something(turn.get(key))]
    if len(keys) > 1:
        raise RowError(f"{where} has tool_calls and function_call: keep one of them")
    return calls_of(turn[keys[0]], f"{where}.{keys[0]}") if keys else ()


def _call(value: object, where: str) -> ToolCall:
    value = parsed_json(value, where)
    function = value.get("function", value) if is_object(value) else None
    if not is_object(value) or not is_object(function):
        raise RowError(f'{where} is {type_of(value)}, not a call: {{"name": ..., "arguments": {{...}}}}')
    name, call_id = function.get("name"), value.get("id")
    if type(name) is not str or not name:
        raise RowError(f"{where} has no name of a tool; it has {', '.join(map(str, function)) or 'nothing'}")
    given = function.get("arguments", function.get("parameters"))
    arguments: object = parsed_json(given, f"{where}.arguments") if is_filled(given) else dict[str, Any]()
    if not is_object(arguments):
        raise RowError(f"{where}.arguments is {type_of(arguments)}, not an object")
    _check_texts([name, call_id, arguments], where)
    return ToolCall(name, arguments, call_id if type(call_id) is str else "")


def _read_from_text(message: Message) -> Message:
    """A turn whose text holds calls (`<tool_call>`), or is a result, as such; text that does not parse stays text."""
    if message.role == "tool" and (response := RESPONSE.fullmatch(message.content)):
        return replace(message, content=response[1])
    if message.role != "assistant" or message.calls:
        return message
    written = [match[1] for match in CALL.finditer(message.content)]
    rest = CALL.sub("", message.content)
    if not written or not message.content.rstrip().endswith("</tool_call>"):
        return message
    try:
        calls = tuple([call for text in written for call in calls_of(text, "tool_call")])
    except RowError:
        return message
    return replace(message, content=rest.strip(), calls=calls)


def merged(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages; calls in turns of their own (ShareGPT, ms-swift) are joined to one turn of parallel calls."""
    found: list[Message] = []
    for message in messages:
        before = found[-1] if found else None
        is_parallel = before and before.role == "assistant" and before.calls and message.calls
        if before and is_parallel and not message.content and not message.thought:
            found[-1] = replace(
                before, calls=before.calls + message.calls, is_learned=before.is_learned and message.is_learned
            )
        else:
            found.append(message)
    return tuple(found)


def parsed_json(value: object, where: str) -> object:
    """What a text of JSON holds; any other value as it is. RowError with the place where it is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=_refused_constant)
    except RecursionError:
        raise RowError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise RowError(f"{where} is not JSON: {error}") from None


def _refused_constant(name: str) -> object:
    raise ValueError(f"{name} is not a value of JSON")


def _check_texts(value: object, where: str) -> None:
    """RowError for a text, at any depth, that no tokenizer can take in."""
    if isinstance(value, str):
        check_text(value, where)
    elif is_list(value):
        for each in value:
            _check_texts(each, where)
    elif is_object(value):
        for key, each in value.items():
            check_text(key, where)
            _check_texts(each, where)
