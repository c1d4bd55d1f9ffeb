"""Objects as YAML text: by PyYAML's safe dumper from dicts, never by pasting text, so that no value can become a key.

Comments, where they are asked for, are put on lines of their own after that; the text still reads as the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml

from loradock.errors import Problem, UsageError

Path = tuple[str | int, ...]
Explain = Callable[[Path], str | None]
WIDTH = 120


class _Dumper(yaml.SafeDumper):
    """Keys in our order, no aliases, texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """A block where there are several lines; the dumper itself falls back to quotes where a block cannot hold it."""
    style = "|" if "\n" in value.rstrip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(objects: Sequence[dict[str, Any]], *, explain: Explain | None = None) -> str:
    """One document an object. `explain` gives the comment above the line of a path, which begins with the kind."""
    texts = [_document(each, explain=explain) for each in objects]
    return "---\n".join(texts)


def _document(content: dict[str, Any], *, explain: Explain | None) -> str:
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    if yaml.safe_load(text) != content:
        raise UsageError(
            "a value cannot be written as YAML", problems=[Problem(what=repr(content)[:200], file=content["kind"])]
        )
    return _commented(text, content["kind"], explain) if explain else text


def _commented(text: str, kind: str, explain: Explain) -> str:
    """The text with a comment line above each key that `explain` knows, as far in as the key."""
    comments: dict[int, list[str]] = {}
    for path, line, column in _keys(yaml.compose(text, Loader=yaml.SafeLoader), (kind,)):
        if said := explain(path):
            comments.setdefault(line, []).extend(f"{' ' * column}# {_one_line(each)}\n" for each in said.split("\n"))
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


def _one_line(text: str) -> str:
    """What may stand in a comment: nothing that ends the line."""
    return "".join(each if each.isprintable() else " " for each in text)
