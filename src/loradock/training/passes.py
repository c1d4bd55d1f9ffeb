"""The passes of a step, between an objective that asks for them and a backend that makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch

from loradock.catalog.samples import SampleKind
from loradock.data.collate import Batch, MicroBatch


@dataclass(frozen=True, kw_only=True)
class MicroStep:
    """Which micro-batch of which optimiser step: `step` is the last one completed, `index` counts from 0."""

    step: int
    index: int
    count: int

    @property
    def is_last(self) -> bool:
        """True for the micro-batch that completes the step."""
        return self.index == self.count - 1


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """A micro-batch's documents as vectors, float32 [documents, hidden] on the device; [documents, 1] with a head.

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

    def micro_batches(self, inputs: StepInputs, kind: SampleKind) -> Sequence[Any]:
        """The micro-batches of a step that hold samples of a kind."""
        ...

    def documents(
        self, micro_batches: Sequence[DocumentInputs], *, spare: DocumentInputs, counts: dict[str, int]
    ) -> Sequence[DocumentInputs]:
        """Micro-batches of documents to score; idle ones besides where ranks meet in every pass."""
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

    def reference_model(self) -> AbstractContextManager[None]:
        """Inside, the model computes as before the run: the base, or with the adapter that the run began with."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Around what waits for the other ranks."""
        ...


class DocumentInputs(NamedTuple):
    """A micro-batch of documents as the engine takes it, and the place of each in its batch (`MicroBatch.places`)."""

    tensors: Any
    places: torch.Tensor


class BatchInputs(NamedTuple):
    """A `data.collate.Batch` as tensors: its micro-batches as the engine takes them, and its counts over all ranks."""

    micro_batches: list[Any]
    samples: int
    supervised_tokens: int
    documents: int
    places: list[torch.Tensor]
    relations: dict[str, torch.Tensor]

    @classmethod
    def of(cls, batch: Batch, micro_batches: list[Any]) -> Self:
        """Those of a batch whose micro-batches are tensors already."""
        return cls(
            micro_batches=micro_batches,
            samples=batch.samples,
            supervised_tokens=batch.supervised_tokens,
            documents=batch.documents,
            places=[torch.from_numpy(each.places) for each in batch.micro_batches if batch.documents],
            relations={name: torch.from_numpy(array) for name, array in batch.relations.items()},
        )

    @property
    def document_inputs(self) -> list[DocumentInputs]:
        """Its micro-batches with their places, where it has documents."""
        return [DocumentInputs(*each) for each in zip(self.micro_batches, self.places, strict=True)]


class StepInputs(NamedTuple):
    """An optimiser step as tensors, one batch of each kind of samples; `counts` are for the meter.

    A NamedTuple, since the loader pins the memory of what lies in tuples, lists and dicts.
    """

    batches: dict[SampleKind, BatchInputs]
    counts: dict[str, int]
