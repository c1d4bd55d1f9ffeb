"""What the metric lines say of padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loradock.data.collate import Batch
from loradock.data.steps import Step
from loradock.training.batches import StepItems
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
