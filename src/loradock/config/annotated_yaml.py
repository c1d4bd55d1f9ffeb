"""A resolved configuration as YAML, each value with a trailing comment that says where it came from.

What is written reads back to the same configuration, so `loradock config show > run.yaml` pins a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import yaml
from pydantic import BaseModel

from loradock.config.load import Loaded
from loradock.config.scalars import scalar
from loradock.config.strict_yaml import KeyPath
from loradock.config.suggest import dotted

COMMENT_COLUMN = 42

_resolve = cast("Callable[..., str]", yaml.resolver.Resolver().resolve)  # pyright: ignore[reportUnknownMemberType]
"""The tag of a plain value in YAML 1.1, as PyYAML reads it: there `no` is a truth value, and 1_000 a number."""

_TEXT = "tag:yaml.org,2002:str"

_PLAIN = re.compile(r"[A-Za-z0-9_./~-][A-Za-z0-9_./~+@=-]*")


def annotated_yaml(loaded: Loaded) -> str:
    """The whole configuration as YAML text, ending in a newline."""
    lines = _section(loaded.config, (), loaded.origins)
    return "".join(
        f"{text:<{COMMENT_COLUMN}}  # {_escaped(origin)}\n" if origin else f"{text}\n" for text, origin in lines
    )


def plain(value: Any) -> str:
    """A single value, or a list or mapping of single values, in YAML's flow style."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(plain(item) for item in cast('tuple[Any, ...]', value))}]"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return f"{{{', '.join(f'{plain(key)}: {plain(inner)}' for key, inner in items)}}}"
    return json.dumps(value)


def _section(section: BaseModel, path: KeyPath, origins: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Lines of YAML with the origin of each (empty for a line that only opens a section)."""
    indent = "  " * len(path)
    for name in type(section).model_fields:
        value, below = getattr(section, name), (*path, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:", ""
            yield from _section(value, below, origins)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield f"{indent}{name}:", ""
            for index, item in enumerate(cast("tuple[BaseModel, ...]", value)):
                yield from _item(item, (*below, index), origins)
        elif isinstance(value, dict) and value:
            yield f"{indent}{name}:", ""
            for key, inner in cast("dict[str, Any]", value).items():
                yield f"{indent}  {_text(key)}: {plain(inner)}", origins[dotted((*below, key))]
        else:
            yield f"{indent}{name}: {plain(value)}", origins[dotted(below)]


def _item(item: BaseModel, path: KeyPath, origins: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The lines of one section in a list; its first line carries the dash."""
    indent = "  " * (len(path) - 1)
    for number, (text, origin) in enumerate(_section(item, path, origins)):
        stripped = text[len(indent) + 2 :]
        yield f"{indent}{'- ' if number == 0 else '  '}{stripped}", origin


def _text(value: str) -> str:
    """A text as it stands where every reader of YAML takes it for that text, and in quotes elsewhere."""
    is_plain = _PLAIN.fullmatch(value) and scalar(value) == value and not value.startswith("-")
    if is_plain and _resolve(yaml.ScalarNode, value, (True, False)) == _TEXT:
        return value
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(quoted)}"'


def _escaped(text: str) -> str:
    """Everything that does not show as a character, line ends of any kind among it, as YAML escapes it."""
    return "".join(each if each.isprintable() else _escape(ord(each)) for each in text)


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
