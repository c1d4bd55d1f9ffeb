"""How a template writes calls, told from two that it writes, and calls read back from text that a model generated.

Three kinds cover the templates that are in use: a call is a JSON value behind a marker or bare (Hermes, Qwen 2.5 and 3,
Mistral, Llama 3, and tools as text), a name with a JSON object of arguments (DeepSeek, gpt-oss, newer Mistral), or a
name with a tag for each argument (Qwen 3.5, GLM 4.5). A syntax is taken where it reads the probe's calls back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Protocol

from loradock.data.formats.base import Conversation, Message, RowError, ToolCall, is_object
from loradock.data.formats.tools import calls_of

Tools = Sequence[Mapping[str, Any]]
FIRST = ToolCall("qtool", {"qkey": "qvalue", "qlist": [1, {"qdeep": True}]})
SECOND = ToolCall("qother", {"qkey": "qmore", "qlist": [2]})
THOUGHT = re.compile(r".*</think>", re.DOTALL)
NAME = r"(?P<name>[\w.\-]+)"
PYTHON_TAG = "<|python_tag|>"
"""What Llama 3 may write in front of a call; its template does not."""


class Unread(ValueError):
    """A text begins a call, and what follows is none."""


class CallSyntax(Protocol):
    """A way to write calls."""

    def read(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        """The calls in a text with its special tokens, as they were generated; Unread where one is broken.

        `tools` say of which type an argument is, where the text does not.
        """
        ...


@dataclass(frozen=True)
class JsonCalls:
    """Each call is a JSON object, or all are a list of them, behind `opening`; "": an object at the start of a line."""

    opening: str

    def read(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        """See CallSyntax."""
        text = THOUGHT.sub("", text)
        if not self.opening:
            text = text.lstrip().removeprefix(PYTHON_TAG)
        start = re.compile(re.escape(self.opening) + r"\s*" if self.opening else r"(?:^|(?<=;))[ \t]*(?=\{)", re.M)
        found: list[ToolCall] = []
        position = 0
        while match := start.search(text, position):
            value, position = _decoded(text, match.end())
            if not self.opening and not (is_object(value) and "name" in value):
                continue  # an object that is part of what is said
            try:
                found += calls_of(value, "call")
            except RowError as error:
                raise Unread(str(error)) from error
        return tuple(replace(call, call_id="") for call in found)


@dataclass(frozen=True)
class NamedCalls:
    """Each call is `opening`, its name, something short, and a JSON object of arguments."""

    opening: str

    def read(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        """See CallSyntax."""
        text = THOUGHT.sub("", text)
        head = re.compile(rf"{re.escape(self.opening)}\s*{NAME}[^{{]{{0,120}}(?=\{{)")
        found: list[ToolCall] = []
        position = 0
        while (begin := text.find(self.opening, position)) >= 0:
            match = head.match(text, begin)
            if not match:
                raise Unread(f"no name and arguments behind {self.opening!r}")
            arguments, position = _decoded(text, match.end())
            if not is_object(arguments):
                raise Unread(f"the arguments of {match['name']} are no object")
            found.append(ToolCall(match["name"], arguments))
        return tuple(found)


@dataclass(frozen=True)
class TaggedCalls:
    """Each call is `opening`, its name, and for each argument `before`, its key, `between`, its value, `after`."""

    opening: str
    before: str
    between: str
    after: str

    def read(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        """See CallSyntax."""
        text = THOUGHT.sub("", text)
        head = re.compile(rf"{re.escape(self.opening)}\s*{NAME}[^<]*")
        end = r"\n?" if self.between.endswith("\n") else ""
        argument = re.compile(
            rf"\s*{re.escape(self.before)}(?P<key>.*?){_lines(self.between)}(?P<value>.*?){end}{re.escape(self.after)}",
            re.DOTALL,
        )
        found: list[ToolCall] = []
        position = 0
        while (begin := text.find(self.opening, position)) >= 0:
            match = head.match(text, begin)
            if not match:
                raise Unread(f"no name behind {self.opening!r}")
            arguments: dict[str, Any] = {}
            position = match.end()
            while pair := argument.match(text, position):
                is_text = _is_text(tools, match["name"], pair["key"])
                arguments[pair["key"]] = pair["value"] if is_text else _value(pair["value"])
                position = pair.end()
            if text[position:].lstrip().startswith(self.before):
                raise Unread(f"an argument of {match['name']} does not end")
            found.append(ToolCall(match["name"], arguments))
        return tuple(found)


def syntax_of(written: Callable[[Conversation], str]) -> CallSyntax | None:
    """The syntax of what `written` makes of a conversation: the text that is learned for its last turn.

    None where it writes no calls, or in a way that no syntax reads back.
    """
    try:
        one = written(probe(FIRST))
    except RowError:
        return None
    try:
        two = written(probe(FIRST, SECOND))
    except RowError:
        two = ""
    plain = THOUGHT.sub("", one)
    candidates = [*_json(plain, two), *_named(plain, two), *_tagged(plain)]
    reads = [each for each in candidates if _is_read(each, one, FIRST) and not (two and not _is_read(each, two))]
    return reads[0] if reads else None


def end_of(written: Callable[[Conversation], str], last_in: Callable[[str], str]) -> str:
    """The special token that a turn of calls ends with; "" where there is none, or where it stands between calls too.

    `last_in`: the special token at the end of a text.
    """
    try:
        one = written(probe(FIRST))
    except RowError:
        return ""
    try:
        two = written(probe(FIRST, SECOND))
    except RowError:
        two = one
    end = last_in(one.rstrip())
    return end if end and two.count(end) == 1 else ""


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


def _json(text: str, two: str) -> list[CallSyntax]:
    for place, character in enumerate(text):
        if character in "[{":
            try:
                value, _ = _decoded(text, place)
                calls = calls_of(value, "call")
            except (Unread, RowError):
                continue
            if [call.name for call in calls] == [FIRST.name]:
                return [JsonCalls(text[:place].strip()), JsonCalls(_opening(text[:place], two))]
    return []


def _named(text: str, two: str) -> list[CallSyntax]:
    name = text.find(FIRST.name)
    return [NamedCalls(opening) for opening in (_opening(text[:name], two), text[:name].strip()) if opening]


def _opening(before: str, two: str) -> str:
    """What opens each call: the end that the text before the first has in common with that before the second."""
    between = two[: two.find(SECOND.name)]
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(before), reversed(between), strict=False))
    length = sum(1 for _ in alike)
    return before[len(before) - length :].strip() or before.strip()


def _tagged(text: str) -> list[CallSyntax]:
    key, value = text.find("qkey"), text.find("qvalue")
    name, second = text.rfind(FIRST.name, 0, max(key, 0)), text.find("qlist")
    if not 0 <= name < key < value < second:
        return []
    gap = text[value + len("qvalue") : second]
    opening, before = _from_tag(text[:name]), _from_tag(gap)
    if not (opening and before and ">" in gap):
        return []
    return [TaggedCalls(opening, before, text[key + len("qkey") : value], gap[: gap.index(">") + 1].strip())]


def _from_tag(text: str) -> str:
    return text[text.rfind("<") :] if "<" in text else ""


def _lines(literal: str) -> str:
    """A literal whose last line break, where it has one, may be missing."""
    return re.escape(literal.removesuffix("\n")) + r"\n?" * literal.endswith("\n")


def _decoded(text: str, position: int) -> tuple[object, int]:
    try:
        return json.JSONDecoder(parse_constant=_refused).raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise Unread(f"a call is not JSON: {error}") from error


def _refused(name: str) -> object:
    raise ValueError(f"{name} is not a value of JSON")


def _is_text(tools: Tools, name: str, key: str) -> bool:
    """Whether a definition says that an argument is a text."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if is_object(parameters) else None
            kind = properties.get(key) if is_object(properties) else None
            return is_object(kind) and kind.get("type") == "string"
    return False


def _value(text: str) -> object:
    """An argument whose type is not known to be text: JSON where it is some."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return text
