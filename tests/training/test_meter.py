"""What the metric lines say of padding, and of which steps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_runs import train

from loradock.data.collate import Batch
from loradock.data.steps import Step
from loradock.errors import Stopped
from loradock.training.batches import StepItems
from loradock.training.loop import Loop, StopNow
from loradock.training.meter import Meter


@dataclass(frozen=True, kw_only=True)
class Slots:
    slots: int
    is_idle: bool = False


def counted(*micro_batches: Slots) -> Meter:
    meter = Meter()
    passes: Any = micro_batches
    batch = Batch(
        micro_batches=passes, samples=2, tokens=300, supervised_tokens=10, row_ids=np.zeros(2, dtype=np.int64)
    )
    steps: Any = [Step(index=0, epoch=0, batches={"rows": batch})]
    as_tensors: Any = lambda micro_batch: (micro_batch, micro_batch.slots)  # noqa: E731
    meter.add(**StepItems(steps, as_tensors)[0].counts)
    return meter


def shares(*meters: Meter) -> list[float]:
    """What the processes of a run say."""
    together = sum(meter.used_slots for meter in meters)
    return [meter.padding_share(together) for meter in meters]


def test_uneven_shares_of_a_step_are_no_padding() -> None:
    assert shares(counted(Slots(slots=250)), counted(Slots(slots=50))) == [0.0, 0.0]


def test_a_pass_without_work_is_no_padding() -> None:
    idle = counted(Slots(slots=90, is_idle=True))
    assert shares(counted(Slots(slots=300)), idle) == [0.0, 0.0]
    assert idle.slots == 90


def test_padding_of_every_process_is_counted() -> None:
    assert shares(counted(Slots(slots=500)), counted(Slots(slots=100))) == [0.5, 0.5]


@pytest.mark.thin(3)
def test_no_step_is_without_a_metric_line_where_a_signal_drops_the_one_after_it(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a run that was stopped and continued say how many steps each is of, and are of all steps together.

    Steps before a dropped one had no line; the pass that the signal came in is in no figure of theirs.
    """
    real, delay = Loop.poll, 1.0

    def poll(loop: Loop) -> None:
        if loop.step == 3:
            time.sleep(delay)
            raise StopNow
        real(loop)

    settings = ("train.max_steps=6", "logging.every=4", "checkpoints.every=100", "data.max_length=64")
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Loop, "poll", poll)
        with pytest.raises(Stopped):
            train(tmp_path / "run", *settings, model=llama, data=rows)
    result = train(tmp_path / "run", *settings, model=llama, data=rows)
    assert [(line["step"], line["steps"]) for line in result.metrics] == [(1, 1), (3, 2), (4, 1), (6, 2)]
    undisturbed = train(tmp_path / "undisturbed", *settings, model=llama, data=rows)
    assert [(line["step"], line["steps"]) for line in undisturbed.metrics] == [(1, 1), (4, 3), (6, 2)]
    assert sum(line["tokens"] for line in result.metrics) == sum(line["tokens"] for line in undisturbed.metrics)
    dropped_in = result.metrics[1]
    assert dropped_in["seconds"] < delay
    assert sum(dropped_in["phases"].values()) - dropped_in["phases"].get("logging", 0.0) <= dropped_in["seconds"]
