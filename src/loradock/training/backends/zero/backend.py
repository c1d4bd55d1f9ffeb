"""The zero backend: autograd through DeepSpeed, which shards gradients and moments; ZeRO-3 also the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch

from loradock.catalog.samples import SampleKind
from loradock.distributed.stragglers import Pace
from loradock.model import optimizer
from loradock.model.adapters import trainable
from loradock.model.experts import column
from loradock.plan.plan import Decision
from loradock.training.backends.autograd import AutogradBackend, broadcast_adapter, checked_packing, seed
from loradock.training.backends.idle import as_many_everywhere, documents_everywhere
from loradock.training.backends.zero import sharding, weights
from loradock.training.checkpoint import state
from loradock.training.checkpoint.state import Stateful
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.events import Decided, Emit
from loradock.training.job import Job
from loradock.training.passes import DocumentInputs, MicroStep, StepInputs


class ZeroBackend(AutogradBackend):
    """Hands the model to DeepSpeed when training begins. There is one attempt: ranks cannot go back on their own.

    `settings` is DeepSpeed's configuration; making it raises where the run cannot be as it was asked for.
    """

    engine: Any = None
    goes_on = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.stage = sharding.stage_of(job.plan)
        self.settings = sharding.settings(job)
        self.cuts_weights = self.stage == sharding.STAGES["zero3"]

    @property
    def computing(self) -> Any:
        """DeepSpeed's engine: it gathers what a forward pass needs."""
        return self.engine

    def autocast(self) -> AbstractContextManager[Any]:
        """None of ours: the engine's own forward has DeepSpeed's (`torch_autocast` of its settings)."""
        return nullcontext()

    def prepare(self) -> tuple[str, ...]:
        """That packed documents do not see one another; later, where the weights are not there yet."""
        if self.cuts_weights:
            return ()
        return tuple(f"packing: {found.why}" for found in checked_packing(self.job, self.job.model))

    def begin(self, job: Job, pace: Pace, emit: Emit) -> None:
        """Hand over the model, its adapter as rank 0 or the checkpoint has it, and prove that it is sharded.

        Raises EnvironmentUnfit where it is not, ModelError where packed documents see one another.
        """
        self.pace, self.emit = pace, emit
        self.device = torch.device("cuda", torch.cuda.current_device()) if job.plan.device.value == "cuda" else CPU
        if job.resume:
            state.restore_adapter(job.model, job.resume)
        broadcast_adapter(job)
        self.put_in()
        if self.cuts_weights:
            self.zero3 = weights.make_known(self.settings)
            weights.cut(job.model, self.settings, device=self.device)
        else:
            column.lay_out_whole(job.model, storage=torch.uint8)
        unsharded = optimizer.of_run(job.model, job.plan.optimizer.value, job.config.train)
        parameters = [list(group["params"]) for group in unsharded.param_groups]  # before DeepSpeed puts its own there
        self.engine = sharding.started(job.model, unsharded, self.settings)
        share = sharding.verified(self.engine, stage=self.stage)
        self.whole = sharding.ZeroOptimizer(self.engine, parameters)
        self.optimizer = self.engine.optimizer.optimizer
        found: list[Decision[Any]] = [Decision(name="share of the model", value=asdict(share), why=str(share))]
        if self.cuts_weights:
            weights.check_packed(job.model, mode="zero3")
            found += checked_packing(job, self.engine)
        emit(Decided(decisions=tuple(found)))
        job.model.train()
        seed(job)

    def restore(self, checkpoint: Checkpoint) -> None:
        """The optimiser and the random state: the adapter was restored before DeepSpeed copied it."""
        state.restore(checkpoint, self.parts(), rank=self.job.rank)

    def parts(self) -> Stateful:
        """The optimiser as one that gives and takes a whole state."""
        return {**super().parts(), "optimizer": self.whole}

    @contextmanager
    def saved_parts(self) -> Iterator[Stateful]:
        """The adapter and its moments, whole on rank 0."""
        parts = {**self.parts(), "optimizer": self.whole.gathered()}
        with weights.whole(trainable(self.job.model)):
            yield parts

    def micro_batches(self, inputs: StepInputs, kind: SampleKind) -> Sequence[Any]:
        """As many on every rank: each pass meets the others'."""
        return as_many_everywhere(inputs, kind, self.job.objective)

    def documents(
        self, micro_batches: Sequence[DocumentInputs], *, spare: DocumentInputs, counts: dict[str, int]
    ) -> Sequence[DocumentInputs]:
        """As many on every rank."""
        return documents_everywhere(micro_batches, spare, counts)

    def exchanged(self, parameters: Sequence[Any], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """In place, since DeepSpeed reduces to where they lie; what is cut is gathered for it, and cut again."""
        with weights.whole(parameters, written=True):
            present = [parameter.detach().clone() for parameter in parameters]
            for parameter, tensor in zip(parameters, values, strict=True):
                parameter.data.copy_(tensor)
        return present

    def forward_backward(self, batch: dict[str, torch.Tensor], *, scale: float, at: MicroStep) -> torch.Tensor:
        """ZeRO reduces the gradients of each micro-batch."""
        return super().forward_backward(batch, scale=scale, at=at)

    def backward(self, loss: torch.Tensor, *, at: MicroStep) -> None:
        """The engine's own, in which ranks wait; it averages over them, and a step's gradient is their sum.

        It is told with which micro-batch a step ends.
        """
        self.engine.set_gradient_accumulation_boundary(at.is_last)
        with self.pace.waiting():
            self.engine.backward(loss * self.job.world_size)

    def reduce_gradients(self) -> None:
        """Each backward pass has reduced its own."""

    def clip(self) -> torch.Tensor:
        """The norm alone: DeepSpeed cuts the gradient in its step, which asks for the norm once more."""
        return sharding.gradient_norm(self.engine.optimizer)

    def update(self) -> None:
        """DeepSpeed's step: the gradient is cut, and this rank's part updated and sent to the others."""
        self.engine.step()

    def passes_seconds(self, pace: Pace) -> float | None:
        """Not known under ZeRO-3: its ranks wait for one another in the forward passes, too."""
        return None if self.cuts_weights else super().passes_seconds(pace)

    def finish(self) -> None:
        """Whole adapter weights on every rank."""
        weights.keep_whole(trainable(self.job.model))


CPU = torch.device("cpu")
