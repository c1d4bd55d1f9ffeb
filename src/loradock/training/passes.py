"""The passes of a step, between an objective that asks for them and a backend that makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from loradock.data.collate import MicroBatch, PairBatch


@dataclass(frozen=True, kw_only=True)
class MicroStep:
    """Which micro-batch of which optimiser step: `step` is the last one completed, `index` counts from 0.

    `is_pooled`: of those whose documents are embedded, which are counted by themselves.
    """

    step: int
    index: int
    count: int
    is_pooled: bool = False

    @property
    def is_last(self) -> bool:
        """True for the micro-batch that completes the step."""
        return self.index == self.count - 1


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A micro-batch's documents as vectors, float32 [documents, hidden] on the device.

    `backward` adds the gradients of the adapters from those of the vectors, of the same shape.
    """

    vectors: torch.Tensor
    backward: Callable[[torch.Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The log-probability of each document's learned tokens, float32 [documents] on the device, in nats.

    Documents come in the order of the micro-batch; those that only fill up its shape come last, with 0. `backward` adds
    the gradients of the adapters from those of the sums, of the same shape.
    """

    log_probabilities: torch.Tensor
    backward: Callable[[torch.Tensor], None]


class Passes(Protocol):
    """What an objective knows of a backend; see `backends.base.Backend`."""

    device: torch.device
    job: Any

    @property
    def hidden(self) -> int:
        """The width of a vector."""
        ...

    def tensors(self, batch: MicroBatch) -> tuple[Any, int]:
        """The tensors of a micro-batch, and their token slots."""
        ...

    def micro_batches(self, inputs: dict[str, Any]) -> Sequence[Any]:
        """The micro-batches of a step."""
        ...

    def forward_backward(self, batch: Any, *, scale: float, at: MicroStep) -> torch.Tensor:
        """Add a micro-batch's gradients; its summed loss times `scale`."""
        ...

    def loss_sum(self, batch: Any) -> torch.Tensor:
        """A micro-batch's summed loss."""
        ...

    def embed(self, batch: Any, *, at: MicroStep | None, keeps: bool) -> Embedded:
        """The vectors of a micro-batch of documents."""
        ...

    def score(self, batch: Any, *, at: MicroStep | None, keeps: bool) -> Scored:
        """The log-probabilities of a micro-batch's documents."""
        ...

    def without_adapter(self) -> AbstractContextManager[None]:
        """Inside, the base computes alone: what a reference model is."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Around what waits for the other ranks."""
        ...


def pair_tensors(pairs: PairBatch, micro_batches: list[Any]) -> dict[str, Any]:
    """A batch of pairs: its micro-batches as tensors, the places of their documents, and what is held against what."""
    return {
        "micro_batches": micro_batches,
        "places": [torch.from_numpy(place) for place in pairs.places],
        "documents": pairs.documents,
        **{name: torch.from_numpy(getattr(pairs, name)) for name in ("queries", "passages", "positives", "hidden")},
    }
