"""Calls of tools read back from text that a model generated, one class for each way to write them."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loradock.data.formats.base import ToolCall
from loradock.data.formats.fields import RowError, is_object
from loradock.data.formats.tools import calls_of

Tools = Sequence[Mapping[str, Any]]
THOUGHT = re.compile(r".*</think>", re.DOTALL)
NAME = r"(?P<name>[\w.\-]+)"
PYTHON_TAG = "<|python_tag|>"
"""What Llama 3 may write in front of a call; its template does not."""
UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)
JSON_NAMES = {"true": True, "false": False, "null": None}
"""Values of JSON that are names in Python: templates mix both spellings."""


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
        calls: list[ToolCall] = []
        position = 0
        while match := start.search(text, position):
            value, position = decoded(text, match.end())
            if not self.opening and not (is_object(value) and "name" in value):
                continue  # an object that is part of what is said
            try:
                calls += calls_of(value, "call")
            except RowError as error:
                raise Unread(str(error)) from error
        return tuple(replace(call, call_id="") for call in calls)


@dataclass(frozen=True)
class NamedCalls:
    """Each call is `opening`, its name, something short, and a JSON object of arguments."""

    opening: str

    def read(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        """See CallSyntax."""
        text = THOUGHT.sub("", text)
        head = re.compile(rf"{re.escape(self.opening)}\s*{NAME}[^{{]{{0,120}}(?=\{{)")
        calls: list[ToolCall] = []
        position = 0
        while (begin := text.find(self.opening, position)) >= 0:
            match = head.match(text, begin)
            if not match:
                raise Unread(f"no name and arguments behind {self.opening!r}")
            arguments, position = decoded(text, match.end())
            if not is_object(arguments):
                raise Unread(f"the arguments of {match['name']} are no object")
            calls.append(ToolCall(match["name"], arguments))
        return tuple(calls)


@dataclass(frozen=True)
class TaggedCalls:
    """Each call is `opening`, its name, and for each argument its key and value between the other three."""

    opening: str
    key_opening: str
    key_closing: str
    value_closing: str

    def read(self, text: str, tools: Tools) -> tuple[ToolCall, ...]:
        """See CallSyntax."""
        text = THOUGHT.sub("", text)
        head = re.compile(rf"{re.escape(self.opening)}\s*{NAME}[^<]*")
        end = r"\n?" if self.key_closing.endswith("\n") else ""
        argument = re.compile(
            rf"\s*{re.escape(self.key_opening)}(?P<key>.*?){_lines(self.key_closing)}(?P<value>.*?){end}{re.escape(self.value_closing)}",
            re.DOTALL,
        )
        calls: list[ToolCall] = []
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
            if text[position:].lstrip().startswith(self.key_opening):
                raise Unread(f"an argument of {match['name']} does not end")
            calls.append(ToolCall(match["name"], arguments))
        return tuple(calls)


@dataclass(frozen=True)
class PythonCalls:
    """All calls are a list of calls with keywords, between `opening` and `closing`."""

    opening: str
    closing: str

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
        """See CallSyntax."""
        text = THOUGHT.sub("", text)
        calls: list[ToolCall] = []
        for part in text.split(self.opening)[1:]:
            written = part.partition(self.closing)[0].strip()
            tree = _parsed(written)
            if not isinstance(tree, ast.List):
                raise Unread("calls are not a list of Python's")
            calls += [_call(node) for node in tree.elts]
        return tuple(calls)


def _lines(literal: str) -> str:
    """A literal whose last line break, where it has one, may be missing."""
    return re.escape(literal.removesuffix("\n")) + r"\n?" * literal.endswith("\n")


def decoded(text: str, position: int) -> tuple[object, int]:
    """The JSON value that begins at a place, and where it ends. Unread."""
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


def _parsed(written: str) -> ast.expr | None:
    """An expression of Python's; a line may break within a text, as templates write it. None where it is none."""
    for text in (written, written.replace("\n", "\\n")):
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(*UNPARSED):
            return ast.parse(text, mode="eval").body
    return None


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        raise Unread("one of the calls has no name, or arguments without one")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise Unread("an argument has no name")
        arguments[keyword.arg] = _literal(keyword.value)
    return ToolCall(ast.unparse(node.func), arguments)


def _literal(node: ast.expr) -> Any:
    """A literal of Python's or of JSON's."""
    if isinstance(node, ast.Name) and node.id in JSON_NAMES:
        return JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return dict(zip(map(str, keys), map(_literal, node.values), strict=True))
    try:
        value = ast.literal_eval(node)
    except ValueError as error:
        raise Unread(f"an argument is not a value: {ast.unparse(node)}") from error
    if not isinstance(value, str | int | float | bool | None):
        raise Unread(f"an argument is not a value of JSON: {ast.unparse(node)}")
    return value
