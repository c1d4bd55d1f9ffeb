"""The fsdp backend: autograd over a model that FSDP2 has sharded, the adapter's moments sharded alike.

All ranks run the same number of passes in the same order, since each pass gathers weights from all of them: one that
has fewer micro-batches in a step than another runs idle ones, of which nothing is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch

from loradock.catalog import optimizers
from loradock.catalog.samples import SampleKind
from loradock.distributed import collectives
from loradock.distributed.stragglers import Pace
from loradock.model.adapters import trainable
from loradock.model.spread import part_of
from loradock.plan.plan import Decision
from loradock.training.backends.autograd import AutogradBackend, Forward, checked_packing, seed
from loradock.training.backends.fsdp import adapters
from loradock.training.backends.fsdp.optimizer import Kept, ShardedAdamW
from loradock.training.backends.fsdp.sharding import device_of, shard, watch_exchanges
from loradock.training.backends.idle import as_many_everywhere, documents_everywhere
from loradock.training.checkpoint import state
from loradock.training.checkpoint.state import Stateful
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.events import Decided, Emit
from loradock.training.job import Job
from loradock.training.passes import DocumentInputs, MicroStep, StepInputs


class FsdpBackend(AutogradBackend):
    """Shards the model when training begins. There is one attempt: ranks cannot go back on their own."""

    optimizer: ShardedAdamW
    goes_on = False

    def begin(self, job: Job, pace: Pace, emit: Emit) -> None:
        """Shard the model, its adapter as rank 0 or the checkpoint has it, and prove that it is sharded.

        Raises EnvironmentUnfit where it is not, ModelError where packed documents see one another.
        """
        self.pace, self.emit = pace, emit
        if job.resume:
            state.restore_adapter(job.model, job.resume)
        adapters.broadcast(job.model)
        self.put_in()
        share = shard(job.model, cpu_offload=job.plan.cpu_offload.value)
        found: list[Decision[Any]] = [Decision(name="share of the model", value=share.part, why=str(share))]
        emit(Decided(decisions=(*found, *checked_packing(job, job.model))))
        self.device = device_of(job.model)
        self.is_on_gpu = self.device.type == "cuda"
        settings = optimizers.named(job.plan.optimizer.value).settings(job.config.train)
        self.optimizer = ShardedAdamW(trainable(job.model), **settings)
        watch_exchanges(job.model, self.exchanging)
        job.model.train()
        seed(job)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Inside, this rank waits for all others. With a GPU its host goes on, and stops anywhere in the passes."""
        with self.pace.waiting(), nullcontext() if self.is_on_gpu else collectives.waiting(self.job.peers):
            yield

    def restore(self, checkpoint: Checkpoint) -> None:
        """The optimiser and the random state: the adapter was restored before the model was sharded."""
        state.restore(checkpoint, self.parts(), rank=self.job.rank)

    def micro_batches(self, inputs: StepInputs, kind: SampleKind) -> Sequence[Any]:
        """As many on every rank."""
        with self.exchanging():
            return as_many_everywhere(inputs, kind, self.job.objective)

    def documents(
        self, micro_batches: Sequence[DocumentInputs], *, spare: DocumentInputs, counts: dict[str, int]
    ) -> Sequence[DocumentInputs]:
        """As many on every rank."""
        with self.exchanging():
            return documents_everywhere(micro_batches, spare, counts)

    def passed(
        self, forward: Forward, batch: dict[str, torch.Tensor], *, at: MicroStep | None, keeps: bool
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], None]]:
        """Forward and, when it is asked for, backward, in which the ranks meet."""
        with self.meeting():
            output, own_backward = super().passed(forward, batch, at=at, keeps=keeps)

        def backward(gradient: torch.Tensor) -> None:
            with self.meeting():
                own_backward(gradient)

        return output, backward

    @cached_property
    def initial(self) -> Sequence[torch.Tensor] | None:
        """This rank's part of it."""
        count, rank = self.job.world_size, self.job.rank
        return self.job.initial and [part_of(tensor, count=count, rank=rank) for tensor in self.job.initial]

    def exchanged(self, parameters: Sequence[Any], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's parts, in place: FSDP gathers from where they lie."""
        present: list[torch.Tensor] = []
        for parameter, tensor in zip(parameters, values, strict=True):
            part = parameter.detach().to_local()
            present.append(part.clone())
            part.copy_(tensor)
        return present

    def meeting(self) -> AbstractContextManager[None]:
        """Around passes: with a GPU the host waits for the others somewhere in them."""
        return collectives.waiting(self.job.peers) if self.is_on_gpu else nullcontext()

    def forward_backward(self, batch: dict[str, torch.Tensor], *, scale: float, at: MicroStep) -> torch.Tensor:
        """Forward and backward, in which the ranks meet."""
        with self.meeting():
            return super().forward_backward(batch, scale=scale, at=at)

    def backward(self, loss: torch.Tensor, *, at: MicroStep) -> None:
        """FSDP averages gradients over the ranks, and a step's gradient is their sum."""
        (loss * self.job.world_size).backward()

    def reduce_gradients(self) -> None:
        """Each backward pass has reduced its own."""

    def clip(self) -> torch.Tensor:
        """The norm of the whole gradient, which is cut to the largest allowed."""
        norm = self.optimizer.take_gradients()
        self.optimizer.clip(norm, most=self.job.config.train.max_grad_norm)
        return norm

    def update(self) -> None:
        """The optimiser's step on this rank's part."""
        self.optimizer.step()
        self.optimizer.forget_gradients()

    @contextmanager
    def saved_parts(self) -> Iterator[Stateful]:
        """The adapter and its moments, whole on rank 0."""
        parts = {**self.parts(), "optimizer": Kept(self.optimizer.whole_state())}
        with adapters.as_one(self.job.model):
            yield parts

    def finish(self) -> None:
        """Whole adapter weights on every rank."""
        adapters.join(self.job.model, everywhere=True)
