"""The runs below a directory, as their own files tell: state, steps, loss, where."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.errors import LoradockError
from loradock.files import foreign_json
from loradock.model.adapter_files import SETTINGS
from loradock.training.run_dir import enclosed, recorded
from loradock.training.run_dir.paths import RECORD, STATUS
from loradock.training.run_dir.record import metrics
from loradock.training.run_dir.status import STATES

GONE = "killed"
"""The state of a run whose files say that it goes on, and whose process is not on this machine any more."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One run. `state` as in status.json, `killed`, or `unreadable`; `loss` is the last that was recorded."""

    directory: str
    state: str
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    started: str | None = None
    model: str | None = None


def listed(parent: Path) -> list[Listed]:
    """Every run in or below `parent`, two levels deep at most, the one that started last at the end."""
    records = {file for pattern in (RECORD, f"*/{RECORD}", f"*/*/{RECORD}") for file in parent.glob(pattern)}
    runs = (run_in(file.parent) for file in records if not _is_of_an_adapter(file.parent))
    return sorted(runs, key=lambda run: (run.started or "", run.directory))


def _is_of_an_adapter(directory: Path) -> bool:
    """Whether it is the record that goes with an adapter, of a run that lies elsewhere."""
    return directory.name == enclosed.FOLDER and (directory.parent / SETTINGS).exists()


def run_in(directory: Path) -> Listed:
    """The run in a directory that has a run.json."""
    try:
        record, status = recorded.read(directory), read(directory / STATUS)
        lines = metrics(directory, "train")
    except (OSError, LoradockError):
        return Listed(directory=str(directory), state="unreadable")
    outcome, base = record.get("outcome") or {}, record.get("base") or {}
    return Listed(
        directory=str(directory),
        state=state_of(record, status),
        step=count_of(status, "step") or outcome.get("steps") or (lines[-1]["step"] if lines else None),
        total_steps=count_of(status, "total_steps") or outcome.get("steps"),
        loss=lines[-1]["loss"] if lines else None,
        started=record.get("started"),
        model=base.get("name"),
    )


def read(file: Path) -> dict[str, Any]:
    """status.json; empty where there is none, or something else in it: it is no part of what a run keeps."""
    with contextlib.suppress(ValueError, FileNotFoundError):
        content = foreign_json.read(file)
        return content if isinstance(content, dict) else {}
    return {}


def count_of(status: dict[str, Any], name: str) -> int | None:
    """A number of steps; None where it holds none."""
    found = status.get(name)
    return found if type(found) is int and found >= 0 else None


def state_of(record: dict[str, Any], status: dict[str, Any]) -> str:
    """How the run stands: its record once it has ended, its status while it goes on."""
    if record.get("status") != "running":
        return str(record.get("status"))
    is_here = status.get("host") == os.uname().nodename
    if is_here and (pid := count_of(status, "pid")) and not Path(f"/proc/{pid}").exists():
        return GONE
    state = status.get("state")
    return state if isinstance(state, str) and state in STATES else "setup"
