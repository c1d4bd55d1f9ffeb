"""Runs of `loradock train` as steps want them: settings in, the record and the figures that questions ask for out."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.steps.base import Session

FELL_BACK = "compile: off ("
LINES = ("self-check:", "largest pass:", "attention over documents:", "dtypes:", FELL_BACK)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: its directory and what was said on stderr."""

    directory: Path
    said: str

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return json.loads((self.directory / "run.json").read_text(encoding="utf-8"))

    def metrics(self, kind: str = "train") -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        from loradock.training.run_dir.record import metrics

        return metrics(self.directory, kind)

    @property
    def losses(self) -> list[float]:
        """Of each step."""
        return [line["loss"] for line in self.metrics()]

    def figures(self, *, warmup_steps: int = 2) -> dict[str, Any]:
        """What most questions ask of a run."""
        steps = self.metrics()
        counted = steps[warmup_steps:] or steps
        record = self.record
        return {
            "losses": [round(each, 6) for each in self.losses],
            "tokens_per_second": sum(line["tokens"] for line in counted) / sum(line["seconds"] for line in counted),
            "step_seconds": [round(line["seconds"], 4) for line in steps],
            "planned_bytes": record["plan"]["memory_bytes"],
            "peak_reserved_bytes": max(line["memory_bytes"] for line in steps),
            "checkpoint_seconds": [line["seconds"] for line in self.metrics("checkpoint")],
            "timings_seconds": record["timings_seconds"],
            "shrunk": record.get("shrunk", []),
            "decided": {each["name"]: each["value"] for each in record["plan"]["decisions"]},
            "said": [line.strip() for line in self.said.splitlines() if line.strip().startswith(LINES)],
            "host_rss_bytes": max((line.get("rss_bytes") or 0 for line in monitored(self.directory)), default=0),
        }


def monitored(directory: Path) -> list[dict[str, Any]]:
    """Lines of monitor.jsonl; none where the run was too short for a sample."""
    from loradock.training.run_dir.record import parsed

    file = directory / "monitor.jsonl"
    return parsed(file) if file.exists() else []


def command(*arguments: str | Path, settings: Mapping[str, Any]) -> list[str]:
    """`loradock train` without the proof of env-check, which is a step of its own."""
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "loradock", "train", "--skip-env-check", *map(str, arguments), *sets]


def train(
    session: Session, name: str, *arguments: str | Path, ends_with: tuple[int, ...] = (0,), **settings: Any
) -> Run:
    """Train into a fresh directory of the step; keys of `settings` have `__` for a dot."""
    directory = session.folder() / name
    shutil.rmtree(directory, ignore_errors=True)
    return resume(session, name, *arguments, ends_with=ends_with, **settings)


def resume(
    session: Session, name: str, *arguments: str | Path, ends_with: tuple[int, ...] = (0,), **settings: Any
) -> Run:
    """The same command over the directory that is there."""
    directory = session.folder() / name
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    chosen = {"logging.every": 1, "data.cache": session.folder("cache"), **chosen}
    began = session.log.stat().st_size if session.log.exists() else 0
    session.run(*command("--output", directory, *arguments, settings=chosen), ends_with=ends_with)
    with session.log.open("rb") as log:
        log.seek(began)
        return Run(directory=found(directory), said=log.read().decode(errors="replace"))


def found(directory: Path) -> Path:
    """The run directory itself: the demo makes one inside the folder that it is given."""
    inner = sorted(directory.glob("*/run.json"))
    return inner[-1].parent if inner else directory
