"""The metric lines say where the time of a step went: a delay put into a phase is found in it and only there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.seams import SEAMS
from whole_runs import Silent, train

from loradock.training import batches
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.events import StepResult
from loradock.training.run_dir.record import metrics
from loradock.training.saving import Saver

PHASES = ("data", "passes", "optimizer", "logging")
DELAY = 0.5
STEPS = 4
SETTINGS = (f"train.max_steps={STEPS}", "checkpoints.every=1", "data.max_length=64")
Patch = Callable[[Any, str, Any], None]


class Slow(Silent):
    """A view that takes its time over every metric line."""

    def event(self, event: Any) -> None:
        super().event(event)
        if isinstance(event, StepResult):
            time.sleep(DELAY)


def slow(owner: Any, name: str, patch: Patch) -> None:
    """The method takes DELAY longer."""
    real = getattr(owner, name)

    def late(*arguments: Any, **more: Any) -> Any:
        time.sleep(DELAY)
        return real(*arguments, **more)

    patch(owner, name, late)


def put_into(phase: str, engine: str, patch: Patch) -> None:
    match phase:
        case "data":
            slow(batches.StepItems, "__getitem__", patch)
        case "passes":
            SEAMS[engine].loss(lambda loss, _, __: (time.sleep(DELAY), loss)[1], patch=patch)
        case "optimizer":
            slow(FlatAdamW if engine == "fast" else torch.optim.AdamW, "step", patch)
        case "saving":
            slow(Saver, "_commit", patch)
        case _:
            assert phase == "logging"


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("engine", "phase"),
    [("fast", phase) for phase in (*PHASES, "saving")] + [("peft", phase) for phase in PHASES],
)
def test_a_delay_is_found_in_its_phase(
    engine: str, phase: str, llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into(phase, engine, monkeypatch.setattr)
    view = Slow() if phase == "logging" else None
    result = train(tmp_path / "run", *SETTINGS, f"engine={engine}", model=llama, data=rows, view=view)
    lines, saved = result.metrics, metrics(result.directory, "checkpoint")
    seconds = {name: sum(line["phases"].get(name, 0.0) for line in lines[1:]) for name in PHASES}  # warm, from there on
    assert set().union(*(line["phases"] for line in lines)) <= set(PHASES)
    assert len(lines) == len(saved) == STEPS
    # A commit runs beside the next step, which waits for what is left of it.
    seconds["saving"] = sum(line["commit_seconds" if phase == "saving" else "seconds"] for line in saved[1:])
    planted = seconds.pop(phase)
    assert planted >= (STEPS - 1) * DELAY
    assert all(other < planted for other in seconds.values()), seconds
    for line in lines[1:]:
        inside = sum(line["phases"][name] for name in ("data", "passes", "optimizer"))
        assert inside <= line["seconds"] < inside + planted, "nothing else takes long"
