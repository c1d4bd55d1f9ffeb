"""The TRL engine's trainer with DeepSpeed's engine in the place of DDP: what it does otherwise, and nothing else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Any

import torch

from loradock.model.adapters import trainable
from loradock.plan.context import Decision
from loradock.training import packing_check
from loradock.training.backends.trl import zero, zero_weights
from loradock.training.backends.trl.trainer import StepTrainer
from loradock.training.checkpoint.state import Stateful
from loradock.training.job import Decided


class NothingLeft(Exception):
    """The evaluation that a checkpoint owed has ended the run."""


class ZeroTrainer(StepTrainer):
    """A StepTrainer under ZeRO. Raises EnvironmentUnfit where the model does not come out sharded."""

    groups: list[list[Any]] | None = None
    zero: zero.ZeroOptimizer | None = None
    owes_evaluation = False
    had_ended: str | None = None

    @property
    def computing(self) -> Any:
        """DeepSpeed's engine, once it is there: autocast is its own."""
        return self.model_wrapped

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Also note which parameters each group has: DeepSpeed puts its own vectors in their place."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.groups is None:
            self.groups = [list(group["params"]) for group in optimizer.param_groups]
        return optimizer

    @property
    def cuts_weights(self) -> bool:
        """True under ZeRO-3."""
        return zero.stage_of(self.job.plan) == zero.STAGES["zero3"]

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """ZeRO-3 first: its weights are not there before they are cut."""
        if self.cuts_weights:
            zero.check_asked(self.accelerator, stage=zero.STAGES["zero3"])
            zero_weights.cut(self.job.model, self.args.deepspeed, device=self.args.device)
        return super()._prepare_for_training(*args, **kwargs)

    def after_preparing(self) -> None:
        """Prove that the model is sharded, and say how; then what waits for its weights."""
        share = zero.verified(self.model_wrapped, stage=zero.stage_of(self.job.plan))
        self.zero = zero.ZeroOptimizer(self.model_wrapped, self.groups or [])
        found = [Decision(name="share of the model", value=asdict(share), why=str(share))]
        if self.cuts_weights:
            zero_weights.check_packed(self.job.model, mode="zero3")
            found += self.packing_check()
        self.emit(Decided(decisions=tuple(found)))
        if self.owes_evaluation:
            self.owes_evaluation = False
            super().hold_owed_evaluation()
            self.flow.ended = self.flow.ended or self.had_ended
            if self.flow.ended:
                raise NothingLeft

    def packing_check(self) -> list[Decision]:
        """That packed documents do not see one another, where the plan packs."""
        if not self.job.plan.packing.value:
            return []
        change = packing_check.of_job(replace(self.job, model=self.computing))
        why = f"documents do not see one another: logits move by {change:.1e} of the largest"
        return [Decision(name="packing check", value="passed", why=why)]

    def hold_owed_evaluation(self) -> None:
        """Later, also after the last step: the model computes once DeepSpeed's engine is there."""
        self.owes_evaluation = True
        self.had_ended, self.flow.ended = self.flow.ended, None

    def parts(self) -> Stateful:
        """The optimiser as one that gives and takes a whole state."""
        return {"optimizer": self.zero, "scaler": None}

    def commit(self) -> None:
        """Save the last step that was completed: every process gathers, rank 0 writes."""
        parts = {**self.parts(), "optimizer": self.zero.gathered() if self.zero else None}
        with zero_weights.whole(trainable(self.job.model)):
            seconds = self.saver.save(self.flow.progress(self.step), parts, random_state=self.random_state)
        self.meter.pause(seconds)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Also leave the adapter whole."""
        trained = None
        with suppress(NothingLeft):
            trained = super().train(*args, **kwargs)
        zero_weights.keep_whole(trainable(self.job.model))
        return trained

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """As without ZeRO, with as many passes on every process: each pass meets the others'."""
        batches = zero.as_many_everywhere(inputs["micro_batches"])
        return super().training_step(model, {**inputs, "micro_batches": batches}, num_items_in_batch)

    def passes_seconds(self) -> float | None:
        """Not known under ZeRO-3: its processes wait for one another in the forward passes, too."""
        return None if self.cuts_weights else super().passes_seconds()

    def accumulating(self, model: Any, *, is_last: bool) -> AbstractContextManager[Any]:
        """ZeRO cuts up the gradients of each micro-batch, and is told with which one a step ends."""
        model.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, model: Any, loss: torch.Tensor) -> None:
        """The engine's own backward; accelerate's would make a step with each micro-batch."""
        model.backward(loss)

    def end_passes(self, model: Any) -> None:
        """The step, which DeepSpeed leaves out where the norm of the gradient is not finite; then the norm is inf."""
        model.step()
