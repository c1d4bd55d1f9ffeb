"""The way into a model directory's files: regular and readable, and what is JSON a JSON object of a plausible size."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from loradock.errors import ModelError, Problem
from loradock.files import regular
from loradock.files.foreign import unreadable

AGAIN = "copy the model directory again"
MOST_BYTES = regular.MOST_BYTES
"""Of a JSON file that is not a vocabulary."""
MOST_VOCABULARY_BYTES = 512 << 20
"""Of a tokenizer.json, and of any other file but weights that a library opens. Gemma 3's has 33 MB."""
MOST_TEMPLATE_BYTES = 4 << 20
WEIGHTS = (".safetensors", ".bin", ".pt")
MOST_DEPTH = 64
"""Lists and objects in one another: published files have below 10, and Python's stack ends at about 1,000."""


def check_readable(files: Iterable[Path]) -> None:
    """Open each of the files that are there. ModelError with all that are no regular file, or too large to be read.

    A library would wait for a FIFO or a terminal, and read a device without an end. Raises what `foreign.unreadable`
    gives.
    """
    problems: list[Problem] = []
    for file in files:
        try:
            status, most_bytes = file.stat(), _most_bytes(file)
            if not stat.S_ISREG(status.st_mode):
                what = f"is {regular.kind_of(status.st_mode)}, not a regular file"
                problems.append(Problem(what=what, file=str(file)))
            elif most_bytes is not None and status.st_size > most_bytes:
                problems.append(Problem(what=_implausible(status.st_size, most_bytes), file=str(file)))
            else:
                regular.opened(file).close()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(error, file) from error
    if problems:
        raise ModelError("a model's files have to be regular files", hint=AGAIN, problems=problems)


def _most_bytes(file: Path) -> int | None:
    """The largest that a file of this name is taken to be; None for weights."""
    if file.suffix in WEIGHTS:
        return None
    if file.suffix == ".jinja":
        return MOST_TEMPLATE_BYTES
    return MOST_BYTES if file.name.endswith("config.json") else MOST_VOCABULARY_BYTES


def _implausible(size_bytes: int, most_bytes: int) -> str:
    return f"has {size_bytes:,} bytes, where {most_bytes:,} are the most that is plausible"


def json_object(file: Path, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object that a file holds. ModelError with file and line where it is none; as `foreign.unreadable`."""
    check_readable([file])
    try:
        size = file.stat().st_size
        raw = regular.read(file, most_bytes=most_bytes) if size <= most_bytes else b""
    except OSError as error:
        raise unreadable(error, file) from error
    if size > most_bytes:
        raise _no_json(file, _implausible(size, most_bytes))
    try:
        content = json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise _no_json(file, f"is nested more than {MOST_DEPTH} levels deep") from None
    except ValueError as error:
        raise _no_json(file, f"is not JSON: {error}", line=getattr(error, "lineno", None)) from error
    if not isinstance(content, dict):
        raise _no_json(file, f"is not JSON with an object at its top, but with a {type(content).__name__}")
    if is_deep(content):
        raise _no_json(file, f"is nested more than {MOST_DEPTH} levels deep")
    return content


def _no_json(file: Path, what: str, *, line: int | None = None) -> ModelError:
    problem = Problem(what=what, file=str(file), line=line)
    return ModelError(f"{file.name} cannot be used", hint=AGAIN, problems=[problem])


def is_deep(content: Any) -> bool:
    """True for a document that is nested deeper than MOST_DEPTH."""
    level = [content]
    for _ in range(MOST_DEPTH):
        level = [inner for value in level for inner in _within(value) if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of all that is neither a list nor an object in a document, however deep."""
    pending = [(path, content)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, dict):
            pending += [(f"{path}.{key}" if path else str(key), value) for key, value in node.items()]
        elif isinstance(node, list):
            pending += [(f"{path}[{index}]", value) for index, value in enumerate(node)]
        else:
            yield path, node


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
