"""A base's facts, kept in this user's cache: who plans the same base again does so without torch.

Nearly all that `shape.inspect` costs is the import of torch and of the model's code (4 CPU-seconds). The facts depend
on the files of the base, on a few sections of the configuration, on loradock's code and on that of the libraries; they
are taken while nothing of it changed, for a week at most. The file is a matter of time alone: without it, or with one
that is damaged or that others may write, they are computed.
"""

from __future__ import annotations

import hashlib
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import loradock
from loradock.config.places import cache_directory
from loradock.config.schema import RunConfig
from loradock.errors import Problem
from loradock.facts import ModelFacts
from loradock.files import atomic_io, foreign_json, regular
from loradock.machine import marks
from loradock.model import description, weights
from loradock.model.source import BaseModel

NAME = "model-facts.json"
FORMAT = "loradock.model-facts/1"
MOST = 16
"""Bases, or settings of one."""
SECTIONS = frozenset({"objective", "model", "tokenizer", "lora", "embedding"})
"""Of the configuration: what the facts depend on."""
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "tokenizers")
FACTS = TypeAdapter(ModelFacts)


def inspect(config: RunConfig) -> tuple[BaseModel, ModelFacts]:
    """The base that the configuration names, and its facts, as `description.describe` and `shape.inspect` give them.

    Raises what these raise; what is refused is not kept.
    """
    folder, directory = cache_directory(None).parent, description.directory_of(config.model)
    key = key_of(config, directory)
    if facts := known(key, folder):
        return description.describe_for_rows(config.model), facts
    from loradock.model import shape

    base = description.describe(config.model)
    facts = shape.inspect(base, config)
    keep(facts, key=key, now=key_of(config, directory), folder=folder)
    return base, facts


def known(key: str | None, folder: Path) -> ModelFacts | None:
    """The facts that were kept in a folder under a key; None where they have to be computed."""
    entry = read(folder / NAME).get(key) if key else None
    return FACTS.validate_python(entry["facts"]) if entry and marks.is_recent(entry["at_ns"]) else None


def keep(facts: ModelFacts, *, key: str | None, now: str | None, folder: Path) -> None:
    """Keep what was computed, where all that it depends on is `now` as it was before."""
    if key and key == now:
        write(folder / NAME, key, facts)


def key_of(config: RunConfig, directory: Path | None) -> str | None:
    """A digest of all that the facts depend on.

    None where it cannot be told: there is no such directory, a file was changed just now, the base comes with code.
    """
    if directory is None or config.model.trust_remote_code:
        return None
    try:
        files = {str(path): marks.mark_of(str(path)) for path in sorted(directory.iterdir())}
        weight_files = marks.marks_of(map(str, weights.resolve(directory, list[Problem]())))
        code = [marks.content_below(str(Path(loradock.__file__).parent)), *map(library, LIBRARIES)]
    except OSError:
        return None
    began_ns = time.time_ns()
    file_marks = [mark for mark in (*files.values(), *weight_files.values()) if mark]
    if not all(marks.is_settled(mark, at_ns=began_ns) for mark in file_marks):
        return None
    settings = config.model_dump(mode="json", include=set(SECTIONS))
    parts = [str(directory), files, weight_files, code, settings]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def library(name: str) -> str | None:
    """A digest of an installed package's files; None where it is not there. Raises OSError."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    return marks.below(str(Path(spec.origin).parent), without=("__pycache__",))


def read(file: Path) -> dict[str, Any]:
    """{key: {"at_ns", "facts"}}, the oldest first; none where the file is not there, not ours alone, or damaged."""
    try:
        content = foreign_json.loads(regular.read_private(file))
        entries = dict(content["kept"]) if content["format"] == FORMAT else {}
        for entry in entries.values():
            int(entry["at_ns"])
            FACTS.validate_python(entry["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return entries


def write(file: Path, key: str, facts: ModelFacts) -> None:
    """Keep one more. Where the folder cannot be written, they are computed the next time: nothing is lost."""
    entries = {name: entry for name, entry in read(file).items() if name != key}
    entries[key] = {"at_ns": time.time_ns(), "facts": FACTS.dump_python(facts, mode="json")}
    latest_entries = dict(list(entries.items())[-MOST:])
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_io.replace(file, json.dumps({"format": FORMAT, "kept": latest_entries}), mode=0o600)
    except OSError:
        return
