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
    given = arguments(container)
    if len(given) < 3 or given[0].text.rpartition("/")[2] not in _SHELLS:
        return given
    return [part for field in given for part in _split(field)]


def values(container: Field, *names: str) -> list[Field]:
    """What is given for an option that has these names, each at its place: `--nnodes 2` or `--nnodes=2`."""
    line = words(container)
    found: list[Field] = []
    for word, after in zip(line, [*line[1:], Field(None)], strict=False):
        name, equals, given = word.text.partition("=")
        if name in names and (equals or after):
            text = given if equals else after.text
            value = _put_in(container, text) if text else after.value
            found.append(Field(value, word.path if equals else after.path))
    return found


def option(container: Field, *names: str, variable: str = "") -> Field | None:
    """The last one of `values`, else the variable that says the same; None where nothing does."""
    given = values(container, *names)
    given = given or [field for name, field in variables(container) if name == variable]
    return given[-1] if given else None


def variables(container: Field) -> Iterator[tuple[str, Field]]:
    """The variables whose values stand in the manifest."""
    return ((each["name"].text, each["value"]) for each in container["env"] if each["value"].text)


def _split(field: Field) -> list[Field]:
    try:
        return [Field(part, field.path) for part in shlex.split(field.text)] if " " in field.text else [field]
    except ValueError:
        return [field]


def _put_in(container: Field, text: str) -> str:
    """The text with the variables that the manifest gives a value; the others stay references."""
    given = {name: field.text for name, field in variables(container)}
    return _REFERENCE.sub(lambda found: given.get(found[1], found[0]), text)
