"""What a container's command line says: its words and options, through a shell, and with its variables put in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from loradock.delivery.kubernetes.check.fields import Field

_SHELLS = ("sh", "bash", "dash", "ash")
_REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_]\w*)\)")


def arguments(container: Field) -> list[Field]:
    """The command line of a container, as far as the manifest gives it."""
    return [*container["command"], *container["args"]]


def words(container: Field) -> list[Field]:
    """The arguments of a container; a shell's script by its words."""
    fields = arguments(container)
    if len(fields) < 3 or fields[0].text.rpartition("/")[2] not in _SHELLS:
        return fields
    return [part for field in fields for part in _split(field)]


def values(container: Field, *names: str) -> list[Field]:
    """What is given for an option that has these names, each at its place: `--nnodes 2` or `--nnodes=2`."""
    line = words(container)
    fields: list[Field] = []
    for word, following in zip(line, [*line[1:], Field(None)], strict=False):
        name, equals, parts = word.text.partition("=")
        if name in names and (equals or following):
            text = parts if equals else following.text
            value = _put_in(container, text) if text else following.value
            fields.append(Field(value, word.path if equals else following.path))
    return fields


def option(container: Field, *names: str, variable: str = "") -> Field | None:
    """The last one of `values`, else the variable that says the same; None where nothing does."""
    fields = values(container, *names)
    fields = fields or [field for name, field in variables(container) if name == variable]
    return fields[-1] if fields else None


def variables(container: Field) -> Iterator[tuple[str, Field]]:
    """The variables whose values stand in the manifest."""
    return ((entry["name"].text, entry["value"]) for entry in container["env"] if entry["value"].text)


def _split(field: Field) -> list[Field]:
    try:
        return [Field(part, field.path) for part in shlex.split(field.text)] if " " in field.text else [field]
    except ValueError:
        return [field]


def _put_in(container: Field, text: str) -> str:
    """The text with the variables that the manifest gives a value; the others stay references."""
    variables_of = {name: field.text for name, field in variables(container)}
    return _REFERENCE.sub(lambda match: variables_of.get(match[1], match[0]), text)
