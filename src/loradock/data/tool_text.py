"""Tools for templates that know none (`data.tools: text`): definitions, calls and results as text in usual turns.

Definitions stand behind the system text, a call is a line of JSON in the answer, and results are a user's turn.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from loradock.data.formats.base import Conversation, Message, ToolCall

DEFINITIONS = (
    "You can call these tools, one JSON object a line. To call one, answer with one line for each call: "
    '{"name": NAME, "arguments": {...}}'
)


def as_text(talk: Conversation) -> Conversation:
    """The conversation in turns that hold text alone; thoughts stay."""
    messages: list[Message] = []
    open_calls: list[ToolCall] = []
    for message in talk.messages:
        open_calls = [*message.calls] or open_calls
        before = messages[-1] if messages else None
        if message.role == "tool":
            named = [call for call in open_calls if message.call_id in ("", call.call_id)]
            name = message.tool_name or (named[0].name if named else "the call")
            open_calls = [call for call in open_calls if call is not named[0]] if named else open_calls
            content = f"Result of {name}: {message.content}"
            if before and before.role == "user" and before.tool_name:
                messages[-1] = replace(before, content=f"{before.content}\n{content}")
            else:
                messages.append(Message("user", content, tool_name="-"))
        elif message.calls:
            lines = [
                json.dumps({"name": each.name, "arguments": each.arguments}, ensure_ascii=False)
                for each in message.calls
            ]
            content = "\n".join(filter(None, (message.content, *lines)))
            messages.append(replace(message, content=content, calls=()))
        else:
            messages.append(message)
    shift = len(messages)
    messages = [replace(each, tool_name="") for each in messages]
    if talk.tools:
        lines = [json.dumps(each["function"], ensure_ascii=False) for each in talk.tools]
        written = "\n".join((DEFINITIONS, *lines))
        has_system = bool(messages) and messages[0].role == "system"
        first = f"{messages[0].content}\n\n{written}" if has_system else written
        messages = [Message("system", first), *messages[has_system:]]
    return Conversation(tuple(messages), given=_given(talk, len(messages) - shift))


def _given(talk: Conversation, added: int) -> int:
    """How many turns of text the first `given` turns become."""
    if not talk.given:
        return 0
    results = [message.role == "tool" for message in talk.messages[: talk.given]]
    joined = sum(one and other for one, other in pairwise(results))
    return talk.given - joined + added
