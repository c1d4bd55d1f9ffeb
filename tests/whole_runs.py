"""Whole runs in this process, and what is looked at of them."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loradock.config.load import load
from loradock.data.collate import MicroBatch
from loradock.machine import Host, probe
from loradock.plan.plan import Plan
from loradock.training.context import opened
from loradock.training.events import Event
from loradock.training.run import Exam, Result, run


@dataclass
class Silent:
    """A view that keeps what it was shown."""

    events: list[Event] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.stages.append(text)

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def prepared_rows(self, rows: int, tokens: int) -> None:
        pass

    def plan(self, plan: Plan) -> None:
        self.plans.append(plan)

    def event(self, event: Event) -> None:
        self.events.append(event)


def train(
    directory: Path,
    *settings: str,
    model: Path,
    data: Path | Sequence[Path],
    preset: str | None = None,
    exam: Exam | None = None,
    view: Silent | None = None,
    allowed: Sequence[str] = (),
    stop_after: int | None = None,
) -> Result:
    """One whole run in this process: `settings` are --set texts; the cache lies beside the run directory.

    Where a run lies in the directory, it is continued.
    """
    overrides = [f"data.cache={directory.parent / 'cache'}", "logging.every=1", *settings]
    files = [data] if isinstance(data, Path) else data
    shortcuts = {"--model": str(model), "--data": [str(each) for each in files]}
    loaded = load(None, preset=preset, overrides=overrides, shortcuts=shortcuts)
    directory.mkdir(exist_ok=True)
    gc.freeze()  # what other tests have left is not looked through again, for half a second a run
    facts = probe.gather(Host())
    before = (
        json.loads((directory / "run.json").read_text(encoding="utf-8")) if (directory / "run.json").exists() else None
    )
    around = opened(loaded, facts=facts, directory=directory, view=view or Silent(), before=before, allowed=allowed)
    return run(around, exam=exam, stop_after=stop_after)


def losses(result: Result) -> list[float]:
    """The training loss of every step."""
    return [line["loss"] for line in result.metrics]


def adapter_bytes(result: Result) -> bytes:
    """The exported weights as bytes."""
    return (result.adapter / "adapter_model.safetensors").read_bytes()


def batches(steps: Sequence[Any]) -> Iterator[MicroBatch]:
    """Every micro-batch of the steps, in order."""
    for step in steps:
        yield from step.micro_batches
