"""Our own command, `loradock train`: `python -m bench.train.arms.loradock TASK`.

Settings: `set` (a list of KEY=VALUE on top of the task's configuration). The plan decides all that is not asked for.
`task.command` is appended to the command line. Each slice prepares its rows anew: that is part of the time to the
first step, where the peers are given ids.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from bench.train.arms.base import LEARNING_RATE, LORA, SCHEDULE, Report, Task

POLL_SECONDS = 0.5
STOPPED = (75, 76)
"""Exit codes of a run that a signal ended in order."""


def configuration(task: Task) -> dict[str, Any]:
    """The run's configuration: what the peers are given, and a metric line for every step."""
    scratch = Path(task.scratch)
    return {
        "output": str(scratch / "run"),
        "device": task.device,
        "model": {"name": task.model, "compute_dtype": task.dtype},
        "data": {
            "sources": [{"path": str(Path(task.rows) / "rows.jsonl"), "format": "prompt-completion"}],
            "max_length": task.longest,
            "cache": str(scratch / "cache"),
        },
        "lora": {"rank": LORA["r"], "alpha": LORA["lora_alpha"], "dropout": task.dropout},
        "train": {
            "global_batch": task.samples,
            "max_steps": task.steps,
            "learning_rate": LEARNING_RATE,
            "schedule": SCHEDULE,
            "warmup": 0,
            "seed": task.seed,
        },
        "checkpoints": {"every": task.steps},
        "logging": {"every": 1},
    }


def supervised(command: list[str], *, task: Task) -> int:
    """Run it, ask it to end when the time is up; its exit code."""
    process = subprocess.Popen(command, stdout=sys.stderr)
    has_asked = False
    while process.poll() is None:
        if task.is_over and not has_asked:
            process.terminate()
            has_asked = True
        time.sleep(POLL_SECONDS)
    return process.returncode


def steps_of(report: Report, run: Path) -> None:
    """Report the steps that the run recorded; each line was written once its loss had been read from the device."""
    from loradock.training.run_dir.record import metrics

    for line in metrics(run, "train"):
        report.step(
            line["step"],
            at=datetime.fromisoformat(line["time"]).timestamp(),
            loss=line["loss"],
            tokens=line["tokens"],
            supervised_tokens=line["supervised_tokens"],
            samples=round(line["samples_per_second"] * line["seconds"]),
        )


def main() -> None:
    """Do the task."""
    task = Task.read()
    report = Report(task)
    config = Path(task.scratch) / "config.yaml"
    config.write_text(yaml.safe_dump(configuration(task)), encoding="utf-8")
    switches = [part for switch in task.settings["set"] for part in ("--set", switch)]
    command = [sys.executable, "-m", "loradock", "train", str(config), *switches, *task.command]
    code = supervised(command, task=task)
    run = Path(task.scratch) / "run"
    steps_of(report, run)
    if code and code not in STOPPED:
        sys.exit(code)
    from bench.floor.machine import stack
    from loradock.training.run_dir.record import metrics

    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    reserved = max((line["memory_bytes"] for line in metrics(run, "train")), default=0)
    report.summary(
        peak_reserved_bytes=reserved or None,
        stack=stack(),
        timings_seconds=record.get("timings_seconds"),
        engine=record.get("engine"),
        decided={each["name"]: each["value"] for each in record["plan"]["decisions"]},
    )


if __name__ == "__main__":
    main()
