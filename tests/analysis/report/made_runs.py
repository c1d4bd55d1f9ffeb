"""Run directories of any length and shape, written as runs write them, without training."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.report.content import content

from loradock.training.events import EvalResult, StepResult

BEGAN = "2026-11-21T12:00:00.000+00:00"


def step_line(step: int, *, loss: float, **parts: Any) -> dict[str, Any]:
    """A metric line of a step that took half a second, most of it in the passes."""
    phases = {"data": 0.05, "passes": 0.35, "optimizer": 0.04, "logging": 0.01}
    line = StepResult(
        step=step,
        steps=1,
        epoch=step / 100,
        loss=loss,
        learning_rate=2e-4,
        grad_norm=1.0,
        tokens=1000,
        supervised_tokens=400,
        padding_share=0.02,
        tokens_per_second=2000.0,
        samples_per_second=16.0,
        steps_per_second=2.0,
        epoch_seconds=32.0,
        seconds=0.5,
        memory_bytes=20 << 30,
        phases=phases,
    )
    return {"kind": "train", "time": BEGAN, **asdict(line), **parts}


def train_lines(count: int, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """A loss that falls, with noise."""
    draw = random.Random(seed)
    for step in range(1, count + 1):
        yield step_line(step, loss=1 + 2 * math.exp(-5 * step / count) + draw.gauss(0, 0.05))


def eval_line(step: int, *, loss: float) -> dict[str, Any]:
    result = EvalResult(
        step=step, loss=loss, metrics={"perplexity": math.exp(loss)}, losses={}, supervised_tokens=500, seconds=2.0
    )
    return {"kind": "eval", "time": BEGAN, **result.line()}


def checkpoint_line(step: int) -> dict[str, Any]:
    where = f"/runs/checkpoints/checkpoint-{step}"
    return {"kind": "checkpoint", "time": BEGAN, "step": step, "directory": where, "seconds": 1.5}


def write_lines(file: Path, lines: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def made_run(directory: Path, *, steps: int = 40, seed: int = 0, change: dict[str, Any] | None = None) -> Path:
    """A finished run of this many steps; `change` replaces parts of its run.json."""
    directory.mkdir(parents=True)
    record = content(directory)
    rewrite(directory, **(change or {}), name=record["name"])
    lines = [*train_lines(steps, seed=seed), eval_line(steps, loss=1.25), checkpoint_line(steps)]
    write_lines(directory / "metrics.jsonl", lines)
    return directory


def rewrite(directory: Path, **parts: Any) -> None:
    """Replace parts of run.json."""
    file = directory / "run.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**record, **parts}), encoding="utf-8")
