"""What a backend is: it computes the micro-batches and updates of a job, and `training.loop` drives it.

Every backend consumes the same optimiser steps (`data.steps`) in the same order, so that one can be held against
another, and keeps a state that any other reads: a run may be continued by another backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from loradock.catalog.samples import SampleKind
from loradock.data.collate import MicroBatch
from loradock.distributed import collectives
from loradock.distributed.stragglers import Pace
from loradock.training.checkpoint import state
from loradock.training.checkpoint.state import Stateful
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.events import Emit
from loradock.training.expert_load import ExpertLoad
from loradock.training.job import Job
from loradock.training.passes import DocumentInputs, Embedded, MicroStep, Scored, StepInputs


class Backend(ABC):
    """A job's backend. From `begin` on it has a device, an optimiser, and in float16 a torch.amp.GradScaler."""

    device: torch.device
    optimizer: Any
    scaler: Any = None
    emit: Emit
    pace: Pace
    expert_load: ExpertLoad | None = None
    """Of a mixture of experts, from `begin` on."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def prepare(self) -> tuple[str, ...]:
        """Look at the real model before anything is trained, by itself on each rank; what to tell of it.

        Raises Unsound, or ModelError where no other backend would do better.
        """
        return ()

    @abstractmethod
    def begin(self, job: Job, pace: Pace, emit: Emit) -> None:
        """An attempt begins: the optimiser is new, and the adapter as `job.model` has it.

        `job` differs from an earlier attempt's in what was given up for memory. `pace` is told where ranks wait, `emit`
        what was decided.
        """

    def start(self, step: int) -> None:  # noqa: B027  most have nothing to do
        """The first step of this attempt comes next; `step` is the last one completed."""

    @abstractmethod
    def tensors(self, batch: MicroBatch) -> tuple[Any, int]:
        """The tensors of a micro-batch, and how many token slots they have, padding included."""

    def begin_step(self) -> None:  # noqa: B027
        """The passes of a step come next; gradients are zero then."""

    def micro_batches(self, inputs: StepInputs, kind: SampleKind) -> Sequence[Any]:
        """The micro-batches of a step that hold samples of a kind; ranks that meet in every pass make equally many."""
        return inputs.batches[kind].micro_batches

    def documents(
        self, micro_batches: Sequence[DocumentInputs], *, spare: DocumentInputs, counts: dict[str, int]
    ) -> Sequence[DocumentInputs]:
        """The micro-batches of documents that this rank scores; where ranks meet in every pass, `spare` ones besides.

        Of those the places are `IDLE`, and their slots are added to `counts`.
        """
        return micro_batches

    @abstractmethod
    def forward_backward(self, batch: Any, *, scale: float, at: MicroStep) -> torch.Tensor:
        """Add a micro-batch's gradients; returns its summed loss times `scale`, in nats, on the device.

        `scale` is 1 over the supervised tokens of the whole step, over all micro-batches and ranks.
        """

    def embed(self, batch: Any, *, at: MicroStep | None, keeps: bool) -> Embedded:
        """The vectors of a micro-batch of documents. `at` None: in an evaluation, without dropout.

        `keeps`: its activations stay for backward; else backward runs it forward once more, with the same dropout.
        """
        raise NotImplementedError(f"{type(self).__name__} embeds nothing")

    @abstractmethod
    def score(self, batch: Any, *, at: MicroStep | None, keeps: bool) -> Scored:
        """The log-probability of each document of a micro-batch; `at` and `keeps` as those of `embed`."""

    @abstractmethod
    def reference_model(self) -> AbstractContextManager[None]:
        """Inside, the model as it was before the run computes: the base, or with `job.initial` as its adapter."""

    @property
    def hidden(self) -> int:
        """The width of a vector."""
        return self.job.plan.model.hidden

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the passes of a step: ranks wait here for one another, and this is nobody's own time."""
        with self.pace.waiting(), collectives.waiting(self.job.peers):
            yield

    @abstractmethod
    def reduce_gradients(self) -> None:
        """Sum the gradients over all ranks."""

    @abstractmethod
    def clip(self) -> torch.Tensor:
        """The norm of the gradient over all ranks; it is cut to the largest norm allowed, here or in `update`.

        No weight changes: what is not finite is refused between the two.
        """

    @abstractmethod
    def update(self) -> None:
        """The optimiser's step, and what follows from it."""

    @abstractmethod
    def loss_sum(self, batch: Any) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""

    @abstractmethod
    def dtypes(self) -> dict[str, str]:
        """Those that really came out: part -> dtype."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the adapter, optimiser, scaler and random state of a checkpoint."""
        state.restore_adapter(self.job.model, checkpoint)
        state.restore(checkpoint, self.parts(), rank=self.job.rank)

    def parts(self) -> Stateful:
        """What has a state of its own besides the adapter."""
        return {"optimizer": self.optimizer, "scaler": self.scaler, **self.job.objective.stateful}

    @contextmanager
    def saved_parts(self) -> Iterator[Stateful]:
        """The parts as a checkpoint holds them: inside, rank 0 has the whole adapter and its whole state."""
        yield self.parts()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Around an evaluation, and where dtypes are looked at."""
        yield

    def passes_seconds(self, pace: Pace) -> float | None:
        """This rank's own seconds in the passes since the last metric line; None where that is not known."""
        return pace.taken()

    def report(self) -> None:  # noqa: B027
        """A metric line comes next."""

    def end(self) -> None:  # noqa: B027
        """An attempt is over, however: what it put into the model is taken out. The adapter stays."""

    def finish(self) -> None:  # noqa: B027
        """Training is over: the adapter is whole on every rank, for the export."""
