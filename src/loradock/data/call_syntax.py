"""How a template writes calls, told from two that it writes.

Four kinds cover the templates that are in use: a call is a JSON value behind a marker or bare (Hermes, Qwen 2.5 and 3,
Mistral, Llama 3, and tools as text), a name with a JSON object of arguments (DeepSeek, gpt-oss, newer Mistral), a name
with a tag for each argument (Qwen 3.5, GLM 4.5), or one of Python's (LFM2). A syntax is taken where it reads the
probe's calls back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile

from loradock.data.call_readers import (
    THOUGHT,
    CallSyntax,
    JsonCalls,
    NamedCalls,
    PythonCalls,
    TaggedCalls,
    Unread,
    decoded,
)
from loradock.data.formats.base import Conversation, Message, ToolCall
from loradock.data.formats.fields import RowError
from loradock.data.formats.tools import calls_of

FIRST = ToolCall("qtool", {"qkey": "qvalue", "qlist": [1, {"qdeep": True}]})
SECOND = ToolCall("qother", {"qkey": "qmore", "qlist": [2]})


def syntax_of(written: Callable[[Conversation], str]) -> CallSyntax | None:
    """The syntax of what `written` makes of a conversation: the text that is learned for its last turn.

    None where it writes no calls, or in a way that no syntax reads back.
    """
    try:
        single = written(probe(FIRST))
    except RowError:
        return None
    try:
        double = written(probe(FIRST, SECOND))
    except RowError:
        double = ""
    plain = THOUGHT.sub("", single)
    candidates = [*_json(plain, double), *_named(plain, double), *_tagged(plain), *_python(plain)]
    reads = [
        syntax
        for syntax in candidates
        if _is_read(syntax, single, FIRST) and not (double and not _is_read(syntax, double))
    ]
    return reads[0] if reads else None


def end_of(written: Callable[[Conversation], str], last_in: Callable[[str], str]) -> str:
    """The special token that a turn of calls ends with; "" where there is none, or where it stands between calls too.

    `last_in`: the special token at the end of a text.
    """
    try:
        single = written(probe(FIRST))
    except RowError:
        return ""
    try:
        double = written(probe(FIRST, SECOND))
    except RowError:
        double = single
    end = last_in(single.rstrip())
    return end if end and double.count(end) == 1 else ""


def probe(*calls: ToolCall) -> Conversation:
    """A conversation that ends with calls of defined tools."""
    kinds = {"qkey": {"type": "string", "description": "q"}, "qlist": {"type": "array", "description": "q"}}
    parameters = {"type": "object", "properties": kinds, "required": [*kinds]}
    tools = [{"name": call.name, "description": "q", "parameters": parameters} for call in (FIRST, SECOND)]
    wrapped = tuple({"type": "function", "function": tool} for tool in tools)
    return Conversation((Message("user", "a"), Message("assistant", "", calls=calls)), tools=wrapped)


def _is_read(syntax: CallSyntax, text: str, *calls: ToolCall) -> bool:
    """Whether a syntax reads these calls in a text; both of the probe where none are named."""
    try:
        return syntax.read(text, probe().tools) == (calls or (FIRST, SECOND))
    except Unread:
        return False


def _json(text: str, double: str) -> list[CallSyntax]:
    for place, character in enumerate(text):
        if character in "[{":
            try:
                value, _ = decoded(text, place)
                calls = calls_of(value, "call")
            except (Unread, RowError):
                continue
            if [call.name for call in calls] == [FIRST.name]:
                return [JsonCalls(text[:place].strip()), JsonCalls(_opening(text[:place], double))]
    return []


def _named(text: str, double: str) -> list[CallSyntax]:
    name = text.find(FIRST.name)
    return [NamedCalls(opening) for opening in (_opening(text[:name], double), text[:name].strip()) if opening]


def _opening(head: str, double: str) -> str:
    """What opens each call: the end that the text before the first has in common with that before the second."""
    between = double[: double.find(SECOND.name)]
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(head), reversed(between), strict=False))
    length = sum(1 for _ in alike)
    return head[len(head) - length :].strip() or head.strip()


def _tagged(text: str) -> list[CallSyntax]:
    key, value = text.find("qkey"), text.find("qvalue")
    name, second = text.rfind(FIRST.name, 0, max(key, 0)), text.find("qlist")
    if not 0 <= name < key < value < second:
        return []
    gap = text[value + len("qvalue") : second]
    opening, key_opening = _from_tag(text[:name]), _from_tag(gap)
    if not (opening and key_opening and ">" in gap):
        return []
    return [TaggedCalls(opening, key_opening, text[key + len("qkey") : value], gap[: gap.index(">") + 1].strip())]


def _from_tag(text: str) -> str:
    return text[text.rfind("<") :] if "<" in text else ""


def _python(text: str) -> list[CallSyntax]:
    """What stands around a list of Python's calls that begins with the probe's."""
    match = re.search(rf"(\S+)\[{FIRST.name}\(.*\)\](\S+?>)", text, re.DOTALL)
    return [PythonCalls(match[1], match[2])] if match else []
