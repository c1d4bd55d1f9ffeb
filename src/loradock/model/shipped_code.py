"""Python code that a model ships: whose it is, where a person has trusted one model by its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from loradock.errors import ModelError, Problem
from loradock.files import regular
from loradock.model.files import json_object

FILES = ("config.json", "tokenizer_config.json")
"""Those whose `auto_map` transformers follows."""


def refuse_of_others(directory: Path, *, name: str) -> None:
    """ModelError where a file of a trusted model names code of another repository of the hub (`OWNER/NAME--file`)."""
    problems = [
        Problem(what=f"auto_map names {reference}", file=str(directory / file))
        for file in FILES
        for reference in _references(directory / file)
        if "--" in reference and reference.partition("--")[0] != name
    ]
    if problems:
        raise ModelError(
            f"{name} was trusted, and its files name code of another repository",
            hint='copy that code beside config.json, and leave out what stands up to "--" in auto_map',
            problems=problems,
        )


def is_same(directory: Path, base: Path) -> bool:
    """Whether all code in a directory is the base's too, byte for byte, so that trust in the base covers it."""
    file_pairs = [(file, base / file.relative_to(directory)) for file in directory.rglob("*.py")]
    return all(copy.is_file() and regular.read(copy) == regular.read(file) for file, copy in file_pairs)


def _references(file: Path) -> Iterator[str]:
    """Each class that a file's `auto_map` names: a text, or texts in a list."""
    references = json_object(file).get("auto_map") if file.is_file() else None
    for value in cast("dict[str, Any]", references).values() if isinstance(references, dict) else [references]:
        listed = cast("list[Any]", value) if isinstance(value, list) else [value]
        yield from (reference for reference in listed if isinstance(reference, str))
