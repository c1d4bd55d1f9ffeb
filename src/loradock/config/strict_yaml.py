"""Strict YAML: values together with the place of every key, and nothing silently misread.

PyYAML's parser gives the nodes and their marks; the meaning of a node is decided here, after YAML 1.2's core schema:
`1e-4` is a number; `no`, `on`, `12:30:00`, `2024-01-01` and `0123` stay text. Refused, each with its line: duplicate
keys, merge keys, tags, several documents, a top level that is no mapping, and aliases that expand without end.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import yaml

from loradock.config.scalars import scalar
from loradock.errors import ConfigError, InputMissing, Problem
from loradock.files import regular

RECORD = "run.json"
MAX_BYTES = 1_000_000
MAX_NODES = 10_000
MAX_DEPTH = 32
NO_CHARACTER = re.compile(r"[\ud800-\udfff]")

KeyPath = tuple[str | int, ...]

# The stubs leave PyYAML's stream argument untyped; these two take a text.
_events = cast("Callable[[str], Iterator[yaml.Event]]", partial(yaml.parse, Loader=yaml.BaseLoader))  # pyright: ignore[reportUnknownMemberType]
_nodes = cast("Callable[[str], yaml.Node | None]", partial(yaml.compose, Loader=yaml.BaseLoader))  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True)
class Mark:
    """A place in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file's values, where each key (or list item) stands, and what is wrong with it short of being unreadable."""

    values: dict[str, object]
    marks: dict[KeyPath, Mark]
    problems: tuple[Problem, ...]


def read_document(path: Path) -> Document:
    """Read a YAML file. Raises InputMissing when it cannot be read and ConfigError when it is no YAML mapping."""
    try:
        with regular.opened(path) as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputMissing(f"{path}: no such file", hint=f"ls {path.parent}") from error
    except IsADirectoryError as error:
        if (path / RECORD).is_file():
            raise InputMissing(f"{path} is a run, not a configuration", hint=_of_a_run(path)) from error
        hint = f"--model {path}" if (path / "config.json").is_file() else f"ls {path}"
        raise InputMissing(f"{path}: cannot be read: it is a directory, not a configuration", hint=hint) from error
    except OSError as error:
        raise InputMissing(f"{path}: cannot be read: {error.strerror}", hint=f"ls -ldL {path}") from error
    file = str(path)
    if len(content) > MAX_BYTES:
        raise _bad(file, None, "larger than 1 MB: this is not a configuration", "give data files with --data")
    document = parse_document(_decode(content, file=file), file=file)
    if path.name == RECORD and "run_id" in document.values:
        raise InputMissing(f"{path} is the record of a run, not a configuration", hint=_of_a_run(path.parent))
    return document


def _of_a_run(directory: Path) -> str:
    name = shlex.quote(str(directory))
    return f"loradock train --resume --output {name} continues it, loradock reproduce {name} repeats it"


def parse_document(text: str, *, file: str) -> Document:
    """Parse YAML text whose top level is a mapping. Raises ConfigError when it is not, or is no YAML at all."""
    node = _compose(text, file=file)
    if node is None:
        if not text.strip():
            raise _bad(file, None, "the file is empty", "leave the file out to take every default")
        return Document(values={}, marks={}, problems=())
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
        hint = "write `section:` and below it, indented, `key: value`; give data files with --data"
        raise _bad(file, _line(node), f"the top level is {kind}, not a mapping", hint)
    builder = _Builder(file=file)
    values = builder.mapping(node, (), 0)
    return Document(values=values, marks=builder.marks, problems=tuple(builder.problems))


def parse_value(text: str, *, file: str) -> object:
    """The value of one `key=TEXT` argument: a list, a mapping or a quoted text in YAML's flow style, or a scalar.

    Raises ConfigError with what is wrong; `file` names the argument in it.
    """
    if not text.startswith(("[", "{", '"', "'")):
        return scalar(text)
    node = _compose(text, file=file)
    builder = _Builder(file=file)
    value = builder.value(node, (), 0) if node is not None else None
    if builder.problems:
        raise ConfigError("a value cannot be read", problems=builder.problems)
    return value


def _bad(file: str, line: int | None, what: str, hint: str | None = None) -> ConfigError:
    problem = Problem(what=what, file=file, line=line, hint=hint)
    return ConfigError("the configuration cannot be read", problems=[problem])


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _decode(content: bytes, *, file: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _bad(file, 1, "the file is UTF-16, not UTF-8", f"iconv -f UTF-16 -t UTF-8 {file}")
    nul = content.find(b"\0")
    if nul >= 0:
        line = content.count(b"\n", 0, nul) + 1
        raise _bad(file, line, "a NUL byte: this is not a text file", "give data files with --data")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        hint = f"iconv -f LATIN1 -t UTF-8 {file}"
        raise _bad(file, line, f"byte 0x{content[error.start]:02x} is not UTF-8", hint) from error


def _compose(text: str, *, file: str) -> yaml.Node | None:
    """The node tree; the events are read first, so that depth and size are bounded before anything recurses."""
    try:
        _check_events(text, file=file)
        return _nodes(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _bad(file, line, "a control character that YAML does not allow", "delete it") from error
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text, file=file) from error


def _check_events(text: str, *, file: str) -> None:
    depth = nodes = documents = 0
    for event in _events(text):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _bad(file, line, "a second document begins here", "keep one and delete the line ---")
        tag: object = getattr(event, "tag", None)
        if isinstance(tag, str):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise _bad(file, line, f"tags ({shown}) are not read", "write the value without the tag")
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _bad(file, line, f"nested deeper than {MAX_DEPTH} levels")
        if nodes > MAX_NODES:
            raise _bad(file, line, f"more than {MAX_NODES} values: this is not a configuration")


def _syntax(error: yaml.MarkedYAMLError, text: str, *, file: str) -> ConfigError:
    problem = error.problem or error.context or "it cannot be parsed"
    lacks_colon = "could not find expected ':'" in problem
    mark = error.context_mark if lacks_colon else error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    if "'\\t'" in problem:
        return _bad(file, line, "a tab: YAML indents with spaces", f"expand -t 2 {file}")
    hint = None
    if lacks_colon:
        hint = "write `key: value` with a space after the colon"
    elif "mapping values are not allowed" in problem:
        hint = "put a space after each colon, indent evenly, and quote a text that holds a colon"
    elif mark and mark.index >= len(text.rstrip()):
        hint = "a bracket or a quote is never closed"
    return _bad(file, line, f"not valid YAML: {problem}", hint)


@dataclass
class _Builder:
    """Turns nodes into values; remembers marks and collects problems. Aliases count each time they are used."""

    file: str
    marks: dict[KeyPath, Mark] = field(default_factory=dict[KeyPath, Mark])
    problems: list[Problem] = field(default_factory=list[Problem])
    nodes: int = 0

    def value(self, node: yaml.Node, path: KeyPath, depth: int) -> object:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            hint = "write the values out instead of using aliases"
            raise _bad(self.file, _line(node), f"aliases expand to more than {MAX_NODES} values", hint)
        if depth > MAX_DEPTH:
            raise _bad(self.file, _line(node), f"aliases nest deeper than {MAX_DEPTH} levels, or without end")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, path, depth)
        if "\0" in node.value or NO_CHARACTER.search(node.value):
            self.refuse(
                node, "a NUL, or half of a surrogate pair: no name or text file can hold it", "delete the escape"
            )
            return None
        is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return scalar(node.value) if is_plain else node.value

    def sequence(self, node: yaml.SequenceNode, path: KeyPath, depth: int) -> list[object]:
        values: list[object] = []
        for index, item in enumerate(node.value):
            self.marks[*path, index] = Mark(_line(item), item.start_mark.column + 1)
            values.append(self.value(item, (*path, index), depth + 1))
        return values

    def mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            if key is None:
                continue
            if key in lines:
                what = f"{key} is given twice: here and in line {lines[key]}"
                self.refuse(key_node, what, "delete one of them")
                continue
            lines[key] = _line(key_node)
            self.marks[*path, key] = Mark(lines[key], key_node.start_mark.column + 1)
            values[key] = self.value(value_node, (*path, key), depth + 1)
        return values

    def key(self, node: yaml.Node) -> str | None:
        """The key's text as written, or None when it cannot be one (and a problem is noted)."""
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, "a key that is a list or a mapping", "a key is a word")
        elif node.value == "<<" and node.style is None:
            self.refuse(node, "merge keys (<<) are not read", "write the keys out, or use an alias for a whole value")
        elif not node.value:
            self.refuse(node, "an empty key", "a key is a word")
        elif "\0" in node.value or NO_CHARACTER.search(node.value):
            self.refuse(node, "a key with a NUL, or half of a surrogate pair", "a key is a word")
        else:
            return node.value
        return None

    def refuse(self, node: yaml.Node, what: str, hint: str) -> None:
        self.problems.append(Problem(what=what, file=self.file, line=_line(node), hint=hint))
