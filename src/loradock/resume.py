"""Resuming a run: with the configuration that it began with, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loradock.config.load import Loaded, leaves
from loradock.config.schema import RunConfig
from loradock.directory import RECORD
from loradock.errors import NoCheckpoint, Problem, StorageError, UsageError

FREE_KEYS = ("output", "name", "logging.", "checkpoints.keep", "data.cache", "data.workers", "train.workers")


def recorded(directory: Path) -> Loaded:
    """The configuration of the run in `directory`, as run.json keeps it. NoCheckpoint where there is no run."""
    try:
        config = RunConfig.model_validate(_record(directory)["config"])
    except (KeyError, ValueError) as error:
        what = f"{directory / RECORD} holds no configuration of this version"
        raise StorageError(what, hint="start a new run with another --output") from error
    return Loaded(config=config, origins={key: str(directory / RECORD) for key in leaves(config)}, warnings=())


def check(loaded: Loaded, directory: Path) -> None:
    """Refuse to resume a run that is finished (UsageError), or as another one than it is (NoCheckpoint)."""
    content = _record(directory)
    if content.get("status") == "finished":
        steps = content["outcome"]["steps"]
        what = f"the run in {directory} is already finished, at step {steps}"
        raise UsageError(what, hint="start a new one with another --output")
    before, now = leaves(recorded(directory).config), leaves(loaded.config)
    problems = [
        Problem(what=f"{key} was {before.get(key)}, now {now.get(key)}")
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and not key.startswith(FREE_KEYS)
    ]
    if problems:
        raise NoCheckpoint(
            f"the run in {directory} began with another configuration",
            hint=f"loradock train --resume --output {directory} continues it as it was; or name another --output",
            problems=problems,
        )


def _record(directory: Path) -> dict[str, Any]:
    file = directory / RECORD
    if not file.exists():
        raise NoCheckpoint(f"there is no run in {directory}", hint="leave out --resume to start one")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StorageError(f"{file} is not JSON", hint="start a new run with another --output") from error
