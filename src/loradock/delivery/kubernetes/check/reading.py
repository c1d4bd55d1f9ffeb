"""A file's text as manifests: each value with its line, read as Kubernetes reads YAML.

Syntax, duplicate keys, depth and size are judged by `config.strict_yaml`, one document at a time; it refuses merge
keys and tags. The meaning of a plain scalar is another one here: Kubernetes reads YAML 1.1, where `yes` and `on` are
truth values and 0644 is octal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import yaml

from loradock.config.scalars import scalar
from loradock.config.strict_yaml import MAX_BYTES, KeyPath, parse_document
from loradock.delivery.kubernetes.check.base import Manifest
from loradock.delivery.kubernetes.check.fields import Field
from loradock.errors import ConfigError, Problem

_MARKER = re.compile(r"^(?:---|\.\.\.)(?=\s|$)", re.MULTILINE)  # never within a value: YAML forbids it there
_NOTHING = re.compile(r"(?:---|\.\.\.)?\s*(?:#[^\n]*\s*)*")
_TRUE = {spelling for word in ("y", "yes", "on") for spelling in (word, word.capitalize(), word.upper())}
_FALSE = {spelling for word in ("n", "no", "off") for spelling in (word, word.capitalize(), word.upper())}
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_GROUPED = re.compile(r"[-+]?[1-9][0-9]*(?:_[0-9]+)+")
_nodes = cast("Callable[[str], yaml.Node | None]", partial(yaml.compose, Loader=yaml.BaseLoader))


def read_all(texts: Mapping[str, str]) -> tuple[list[Manifest], list[Problem]]:
    """The objects of files, by their names, side by side, and what is wrong with their YAML."""
    manifests: list[Manifest] = []
    problems: list[Problem] = []
    for file, text in texts.items():
        parsed, wrong = read(text, file=file)
        manifests += parsed
        problems += wrong
    for manifest in manifests:
        manifest.beside.extend(manifests)
    return manifests, problems


def read(text: str, *, file: str) -> tuple[list[Manifest], list[Problem]]:
    """The objects of a file, those of a List one by one, and what is wrong with its YAML; they stand alone."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        hint = "a ConfigMap holds 1 MiB at most; split the file"
        return [], [Problem(what="larger than 1 MB: this is not a manifest", file=file, hint=hint)]
    manifests: list[Manifest] = []
    problems: list[Problem] = []
    for offset, part in _documents(text):
        try:
            document = parse_document(part, file=file)
        except ConfigError as error:
            problems += [_moved(problem, offset) for problem in error.problems]
            continue
        problems += [_moved(problem, offset) for problem in document.problems]
        lines = {path: mark.line + offset for path, mark in document.marks.items()}
        node = _nodes(part)
        values = None if node is None else _value(node)
        blocks = dict(_blocks(node, (), offset + 2))
        first_line = min(lines.values(), default=offset + 1)
        manifests += objects(values, file=file, lines=lines, blocks=blocks, first_line=first_line)
    if not manifests and not problems:
        problems.append(Problem(what="it holds no object", file=file, hint="loradock render job --demo"))
    return manifests, problems


def objects(
    values: object,
    *,
    file: str,
    lines: Mapping[KeyPath, int],
    blocks: Mapping[KeyPath, int] | None = None,
    first_line: int = 1,
) -> Iterator[Manifest]:
    """The object that the values of a document are, or those of a List; nothing stands beside them yet."""
    manifest = Manifest(root=Field(values), file=file, lines=lines, blocks=blocks or {}, first_line=first_line)
    return _objects(manifest)


def _documents(text: str) -> Iterator[tuple[int, str]]:
    """Each document that holds something, with the number of lines before it."""
    starts = [0, *(marker.start() for marker in _MARKER.finditer(text))]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end].removeprefix("\ufeff")
        part = "#" + part[3:] if part.startswith("...") else part
        if not _NOTHING.fullmatch(part):
            yield text.count("\n", 0, start), part


def _moved(problem: Problem, offset: int) -> Problem:
    line = None if problem.line is None else problem.line + offset
    hint = None if problem.hint and "--data" in problem.hint else problem.hint
    return Problem(what=problem.what, file=problem.file, line=line, hint=hint)


def _objects(manifest: Manifest) -> Iterator[Manifest]:
    if manifest.kind == "List" and isinstance(manifest.root["items"].value, list):
        for item in manifest.root["items"]:
            yield from _objects(replace(manifest, root=item, first_line=manifest.line(item.path), beside=[]))
    else:
        yield manifest


def _blocks(node: yaml.Node | None, path: KeyPath, above: int) -> Iterator[tuple[KeyPath, int]]:
    """The line after the indicator of each literal block, which is the first of its text; `above` lines come before."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _blocks(value, (*path, str(key.value)), above)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _blocks(value, (*path, index), above)
    elif isinstance(node, yaml.ScalarNode) and node.style == "|":
        yield path, node.start_mark.line + above


def _value(node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        values: dict[str, object] = {}
        for key, value in node.value:
            is_key = isinstance(key, yaml.ScalarNode) and (key.value != "<<" or key.style is not None)
            if is_key and key.value not in values:  # what is none, and a second one, strict_yaml tells
                values[key.value] = _value(value)
        return values
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    return _scalar(node.value) if isinstance(node, yaml.ScalarNode) and node.style is None else node.value


def _scalar(text: str) -> object:
    """A plain scalar as Kubernetes' YAML reader takes it."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _OCTAL.fullmatch(text):
        return int(text.replace("_", ""), 8)
    if _GROUPED.fullmatch(text):
        return int(text.replace("_", ""))
    return scalar(text)
