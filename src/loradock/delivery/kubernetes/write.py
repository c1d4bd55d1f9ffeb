"""Objects as YAML text: by PyYAML's safe dumper from dicts, never by pasting text, so that no value can become a key.

Comments, where they are asked for, are put on lines of their own after that; the text still reads as the same objects.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml

from loradock.config.scalars import scalar
from loradock.errors import LoradockError

Path = tuple[str | int, ...]
Explain = Callable[[Path], str | None]
WIDTH = 120
COMMENT_COLUMNS = 80
BLOCK = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?\n)(?: *[!-~](?:[ -~]*[!-~])?\n)+")
"""Two lines or more of ASCII, none empty, the first not indented, no space at an end."""


class _Dumper(yaml.SafeDumper):
    """Keys in our order, no aliases, texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """A block for plain lines; else quotes with escapes for what some reader takes for something else.

    PyYAML's other styles lose some line ends (U+0085) and empty lines; what is text in YAML 1.1 (`0o7`) is a number in
    1.2, which configurations are read by.
    """
    is_plain = value.isprintable() and scalar(value) == value
    style = "|" if BLOCK.fullmatch(value) else None if is_plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(objects: Sequence[dict[str, Any]], *, explain: Explain | None = None) -> str:
    """One document an object. `explain` gives the comment above the line of a path, which begins with the kind."""
    texts = [_document(document, explain=explain) for document in objects]
    return "---\n".join(texts)


def one_document(content: dict[str, Any]) -> str:
    """One mapping as YAML. LoradockError where it does not read back as the same: nothing of it is to be used."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    if yaml.safe_load(text) != content:
        raise LoradockError("what was written as YAML does not read back as the same", hint="please report this")
    return text


def _document(content: dict[str, Any], *, explain: Explain | None) -> str:
    text = one_document(content)
    return _commented(text, content["kind"], explain) if explain else text


def _commented(text: str, kind: str, explain: Explain) -> str:
    """The text with a comment line above each key that `explain` knows, as far in as the key."""
    comments: dict[int, list[str]] = {}
    for path, line, column in _keys(yaml.compose(text, Loader=yaml.SafeLoader), (kind,)):
        if comment := explain(path):
            comments.setdefault(line, []).extend(f"{' ' * column}# {line}\n" for line in _comment_lines(comment))
    lines = text.splitlines(keepends=True)
    return "".join("".join([*comments.get(number, []), line]) for number, line in enumerate(lines))


def _keys(node: yaml.Node | None, path: Path) -> Iterator[tuple[Path, int, int]]:
    """(path, line, column) of every key; of the first key in a list's item the column of its dash."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, key.value)
            is_first_of_item = isinstance(path[-1], int) and key is node.value[0][0]
            yield below, key.start_mark.line, key.start_mark.column - 2 * is_first_of_item
            yield from _keys(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _keys(item, (*path, index))


def _comment_lines(text: str) -> list[str]:
    """Lines that may stand in a comment: nothing in them ends the line, and each is of COMMENT_COLUMNS at most."""
    lines = ("".join(part if part.isprintable() else " " for part in line) for line in text.split("\n"))
    return [part for line in lines for part in textwrap.wrap(line, COMMENT_COLUMNS, subsequent_indent="  ")]
