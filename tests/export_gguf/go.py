"""As much of Go's text/template as our Modelfiles use: range, if, else if, else, end, fields, eq, and, le."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

TOKEN = re.compile(r"\{\{ (.*?) \}\}", re.DOTALL)


def render(template: str, messages: Sequence[Mapping[str, str]]) -> str:
    """What Ollama makes of a template: `.System` is the system messages' text, `.Messages` are all of them."""
    parts = TOKEN.split(template)
    nodes = [(bool(index % 2), part) for index, part in enumerate(parts)]
    system = "\n\n".join(each["content"] for each in messages if each["role"] == "system")
    root = {"System": system, "Messages": [{"Role": m["role"], "Content": m["content"]} for m in messages]}
    tree, rest = _block(nodes, 0)
    assert rest == len(nodes)
    return _run(tree, root, root, {})


def _block(nodes: list[tuple[bool, str]], at: int) -> tuple[list[Any], int]:
    """Nodes up to an `end` or `else` that is not theirs."""
    found: list[Any] = []
    while at < len(nodes):
        is_action, text = nodes[at]
        if not is_action:
            found.append(text)
        elif text.startswith("range"):
            inner, at = _block(nodes, at + 1)
            assert nodes[at] == (True, "end")
            found.append(("range", text, inner))
        elif text.startswith("if"):
            branch, at = _branches(nodes, at)
            found.append(branch)
        elif text == "end" or text.startswith("else"):
            return found, at
        else:
            found.append(("put", text))
        at += 1
    return found, at


def _branches(nodes: list[tuple[bool, str]], at: int) -> tuple[Any, int]:
    branches: list[tuple[str | None, list[Any]]] = []
    condition: str | None = nodes[at][1].removeprefix("if ")
    while True:
        inner, at = _block(nodes, at + 1)
        branches.append((condition, inner))
        text = nodes[at][1]
        if text == "end":
            return ("if", branches), at
        condition = text.removeprefix("else if ") if text.startswith("else if ") else None


def _run(tree: list[Any], dot: Any, root: Any, names: dict[str, Any]) -> str:
    written = ""
    for node in tree:
        if isinstance(node, str):
            written += node
        elif node[0] == "put":
            written += str(_value(node[1], dot, root, names))
        elif node[0] == "range":
            for index, each in enumerate(root["Messages"]):
                written += _run(node[2], each, root, {"$i": index})
        else:
            for condition, inner in node[1]:
                if condition is None or _value(condition, dot, root, names):
                    written += _run(inner, dot, root, names)
                    break
    return written


def _value(text: str, dot: Any, root: Any, names: dict[str, Any]) -> Any:
    words = re.findall(r"\([^()]*\)|\"[^\"]*\"|\S+", text)
    if words[0] in ("eq", "le", "and"):
        first, second = (_value(each.strip("()"), dot, root, names) for each in words[1:])
        return {"eq": first == second, "and": first and second}[words[0]] if words[0] != "le" else first <= second
    (word,) = words
    if word.startswith('"'):
        return word.strip('"')
    if word.isdigit():
        return int(word)
    if word.startswith("$."):
        return root[word[2:]]
    return names[word] if word.startswith("$") else dot[word[1:]]
