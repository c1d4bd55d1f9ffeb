"""What the metric lines say of padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loradock.training.batches import StepItems
from loradock.training.meter import Meter


@dataclass(frozen=True, kw_only=True)
class Batch:
    slots: int
    is_idle: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    micro_batches: tuple[Batch, ...]
    tokens: int = 300
    supervised_tokens: int = 10
    samples: int = 2
    rows: int = 2
    pairs: None = None


def counted(*batches: Batch) -> Meter:
    meter = Meter()
    items: Any = StepItems([Step(micro_batches=batches)], lambda batch: (batch, batch.slots))  # pyright: ignore
    meter.add(**items[0]["counts"])
    return meter


def shares(*meters: Meter) -> list[float]:
    """What the processes of a run say."""
    together = sum(meter.used_slots for meter in meters)
    return [meter.padding_share(together) for meter in meters]


def test_uneven_shares_of_a_step_are_no_padding() -> None:
    assert shares(counted(Batch(slots=250)), counted(Batch(slots=50))) == [0.0, 0.0]


def test_a_pass_without_work_is_no_padding() -> None:
    idle = counted(Batch(slots=90, is_idle=True))
    assert shares(counted(Batch(slots=300)), idle) == [0.0, 0.0]
    assert idle.slots == 90


def test_padding_of_every_process_is_counted() -> None:
    assert shares(counted(Batch(slots=500)), counted(Batch(slots=100))) == [0.5, 0.5]
