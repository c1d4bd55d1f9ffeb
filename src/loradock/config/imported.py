"""A configuration of another tool as a file of ours: values with the key that each is from, and none without effect."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loradock.config import no_effect
from loradock.config.annotated_yaml import COMMENT_COLUMN, plain
from loradock.config.load import load
from loradock.config.other_tools import TOOLS, recognised
from loradock.config.other_tools.base import Tool, Value
from loradock.config.schema import RunConfig
from loradock.config.sections.values import Section
from loradock.config.strict_yaml import Document, parse_value, read_document
from loradock.errors import ConfigError, Problem, UsageError

IDLE = " has no effect: "


@dataclass(frozen=True, kw_only=True)
class Imported:
    """`text`: our YAML; `left`: their keys without a counterpart, each with the reason."""

    tool: Tool
    text: str
    left: Mapping[str, str]


def imported(path: Path, *, tool: str | None = None, gpus: int = 1, overrides: Sequence[str] = ()) -> Imported:
    """The configuration at `path`, of a tool by name or by its keys.

    `overrides` are KEY=VALUE texts of ours, laid over it; `gpus`, how many a step of theirs ran on.

    Raises ConfigError where the file is one of ours or of no tool that is known, or with what could not be trained, by
    the lines of their file.
    """
    document = read_document(path)
    if document.values.keys() & {"model", "data"} and document.values.keys() <= RunConfig.model_fields.keys():
        what = f"{path} is a configuration of loradock, and needs no import"
        raise ConfigError(what, hint=f"loradock plan {shlex.quote(str(path))}")
    member = TOOLS[tool] if tool else recognised(document.values)
    if member is None:
        names = ", ".join(each.title for each in TOOLS.values())
        what = f"{path}: its keys are those of none of {names}, or of several"
        raise ConfigError(what, hint=f"--from {'|'.join(TOOLS)}")
    translation = member.translate(document.values, folder=path.parent, gpus=gpus)
    if translation.refused:
        what = f"{path} asks for a training that is not here ({', '.join(translation.refused.values())})"
        raise ConfigError(what, hint=f"to train supervised rows, remove {', '.join(translation.refused)}")
    values, left = translation.values, dict(translation.left)
    _lay_over(values, overrides)
    while idle := dict(_idle(_config(path, document, values), values)):
        for key, why in idle.items():
            origin = values.pop(key).origin
            if "default" not in origin:
                left[origin] = f"{key}{IDLE}{why}"
    if "model.name" not in values:
        left["(the model)"] = "none is named: loradock train FILE --model DIR"
    if not {"data.sources.0.path", "data.sources"} & values.keys():
        left["(the rows)"] = "none are named: loradock train FILE --data FILE"
    title = f"# From {member.title}'s {path.name}, by loradock config import; after each value the key that it is from."
    return Imported(tool=member, text="\n".join([title, *(line for line, _ in lines(values))]) + "\n", left=left)


def _lay_over(values: dict[str, Value], overrides: Sequence[str]) -> None:
    """Put keys of ours into the values; a whole section or list in the place of what is inside it."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UsageError(f'"{override}" is not KEY=VALUE', hint="such as --set model.revision=COMMIT")
        key = key.strip()
        for inner in [name for name in values if name.startswith(f"{key}.")]:
            del values[inner]
        values[key] = Value(parse_value(text.strip(), file=f"--set {key}"), "--set")


def lines(values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """Lines of YAML in the order of the schema, each with its dotted key."""
    for name in RunConfig.model_fields:
        if name in values:
            yield _line("", name, values[name]), name
        inside = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
        if inside:
            yield f"{name}:", name
            yield from _section(getattr(RunConfig(), name), name, inside)


def _section(section: Section, name: str, inside: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    for key in type(section).model_fields:
        if key in inside:
            yield _line("  ", key, inside[key]), f"{name}.{key}"
        if items := {inner: value for inner, value in inside.items() if inner.startswith(f"{key}.")}:
            yield f"  {key}:", f"{name}.{key}"
            yield from _items(f"{name}.{key}", {inner.partition(".")[2]: value for inner, value in items.items()})


def _items(name: str, items: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """The entries of a list of sections."""
    last = ""
    for dotted, value in sorted(items.items(), key=lambda item: int(item[0].partition(".")[0])):
        index, _, key = dotted.partition(".")
        yield _line("    - " if index != last else "      ", key, value), f"{name}.{dotted}"
        last = index


def _line(indent: str, key: str, value: Value) -> str:
    return f"{f'{indent}{key}: {plain(value.value)}':<{COMMENT_COLUMN}}  # {value.origin}"


def _config(path: Path, document: Document, values: Mapping[str, Value]) -> RunConfig:
    """The configuration that these values are. ConfigError by the lines of their file."""
    written = list(lines(values))
    try:
        return load(path, text="\n".join(line for line, _ in written) or "{}", needs_inputs=False).config
    except ConfigError as error:
        problems = [_in_their_file(problem, path, document, written, values) for problem in error.problems]
        raise ConfigError(f"{path} cannot be trained as it stands", problems=problems) from error


def _in_their_file(
    problem: Problem, path: Path, document: Document, written: Sequence[tuple[str, str]], values: Mapping[str, Value]
) -> Problem:
    key = written[problem.line - 1][1] if problem.line else ""
    theirs: tuple[str | int, ...] = (
        tuple(int(part) if part.isdecimal() else part for part in values[key].origin.partition(",")[0].split("."))
        if key in values
        else ()
    )
    while theirs and theirs not in document.marks:
        theirs = theirs[:-1]
    line = document.marks[theirs].line if theirs else None
    return Problem(what=problem.what, file=str(path), line=line, hint=problem.hint)


def _idle(config: RunConfig, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    for rule in no_effect.WARNINGS:
        for finding in rule(config):
            if finding.keys[0] in values and IDLE in finding.what:
                yield finding.keys[0], finding.what.partition(IDLE)[2]
