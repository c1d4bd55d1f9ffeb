"""A small JSON file beside weights, read into a typed value; what is wrong with it is told by its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from loradock.errors import InputMissing, ModelError, Problem
from loradock.files import atomic_io, foreign_json

SHOWN_CHARACTERS = 60
Content = TypeVar("Content", bound=BaseModel)


def read(file: Path, kind: type[Content], *, hint: str, what: str = "is wrong") -> Content | None:
    """What the file says; None where there is none. InputMissing where it cannot be read, ModelError by its fields."""
    try:
        return kind.model_validate(foreign_json.read(file))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise ModelError(f"{file} {what}", hint=hint, problems=wrong(error, file)) from error
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}", hint=hint) from error
    except OSError as error:
        raise InputMissing(f"{file} cannot be read: {error.strerror}", hint=hint) from error


def write(file: Path, content: BaseModel) -> None:
    """Put it in place whole; keys and indents are the same each time. Raises OSError."""
    atomic_io.replace(file, json.dumps(content.model_dump(), indent=2, ensure_ascii=False) + "\n")


def wrong(error: ValidationError, file: Path, *below: str) -> tuple[Problem, ...]:
    """A problem for each field that pydantic refuses; `below` are the keys that lead to what it looked at."""
    return tuple(_wrong(error, file, below))


def _wrong(error: ValidationError, file: Path, below: tuple[str, ...]) -> Iterator[Problem]:
    for problem in error.errors(include_url=False, include_input=False):
        field = ".".join(str(part)[:SHOWN_CHARACTERS] for part in (*below, *problem["loc"]))
        yield Problem(what=f"{field}: {problem['msg']}" if field else problem["msg"], file=str(file))
