"""One slice: an arm's process, from its start to the line that is kept of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.floor.machine import ROOT
from bench.train.arms.base import Arm, Task
from bench.train.lines import CUT, DONE, FAILED, read

GRACE_SECONDS = 60.0
"""For the step that runs when the time is up, the last checkpoint and the end."""
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
LAST_LINES = 6
COLUMNS = ("step", "loss", "tokens", "supervised_tokens", "samples", "seconds")


@dataclass(frozen=True, kw_only=True)
class Place:
    """How an arm's process is started: its Python, folders put before its packages, and the log that it appends to.

    `is_apart`: a stack of its own, which must see none of the folders that PYTHONPATH gives to ours.
    """

    python: str = sys.executable
    packages: tuple[str, ...] = ()
    is_apart: bool = False
    log: Path = Path(os.devnull)

    def variables(self, scratch: Path, *, threads: int) -> dict[str, str]:
        """The process's environment."""
        inherited = [] if self.is_apart else os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = [*self.packages, str(ROOT), *(str(Path(path).absolute()) for path in inherited if path)]
        chosen = {"PYTHONPATH": os.pathsep.join(paths), "HF_DATASETS_CACHE": str(scratch / "datasets")}
        bound = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        return {**os.environ, **QUIET, **chosen, **bound}


def run(arm: Arm, task: dict[str, Any], *, place: Place) -> dict[str, Any]:
    """Run one slice; returns its `status`, `steps` (columns), `summary` and, where it failed, `reason`.

    `task` holds the fields of a `base.Task` but `scratch` and `began`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-train-") as name, place.log.open("ab") as log:
        scratch = Path(name)
        whole = Task(**task, settings=arm.settings, scratch=str(scratch), began=time.time())
        file = whole.write(scratch / "task.json")
        output = scratch / "lines.jsonl"
        with output.open("wb") as stdout:
            process = subprocess.Popen(
                [place.python, "-m", f"bench.train.arms.{arm.kind}", str(file)],
                cwd=scratch,
                env=place.variables(scratch, threads=whole.threads),
                stdout=stdout,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=whole.limit_seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return told(read(output), task=whole, code=code, log=place.log)


def told(lines: list[dict[str, Any]], *, task: Task, code: int | None, log: Path) -> dict[str, Any]:
    """What the process said, as the parts of a line. A slice that was cut off keeps the steps that it made."""
    steps: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    summary: dict[str, Any] = {}
    for line in lines:
        if "step" in line:
            for name in COLUMNS:
                steps[name].append(line[name])
        else:
            summary |= line.get("summary", line)
    made = len(steps["step"])
    if code == 0 and made:
        return {"status": DONE if made == task.steps else CUT, "steps": steps, "summary": summary}
    ended = "it took too long and was killed" if code is None else f"exit code {code}"
    return {"status": FAILED, "steps": steps, "summary": summary, "reason": f"{ended}: {last_words(log)}"}


def last_words(log: Path) -> str:
    """The end of the log, as one line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return " | ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())[-600:]
