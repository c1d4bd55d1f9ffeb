"""The loop of our own engines: one optimiser step after another, each a few micro-batches, and what is due between."""

from __future__ import annotations

import gc
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed

from loradock import signals
from loradock.distributed import collectives
from loradock.distributed.stragglers import Pace
from loradock.model import dtypes
from loradock.training import guards, schedule
from loradock.training.batches import AsTensors, StepLoader, step_loader
from loradock.training.cadence import Flow
from loradock.training.checkpoint import state
from loradock.training.checkpoint.state import RandomState, Stateful
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.evaluation import evaluate
from loradock.training.job import (
    Doing,
    Dtypes,
    Emit,
    Job,
    StepDone,
)
from loradock.training.meter import (
    DATA,
    OPTIMIZER,
    PASSES,
    Meter,
)
from loradock.training.recovery import StopNow
from loradock.training.saving import Saver


class Loop(ABC):
    """One attempt at a job; an `engine.attempts.Trainer`. What an engine does in its own way is a method of its class.

    `scaler` is a torch.amp.GradScaler where the engine needs one, else None.
    """

    def __init__(
        self,
        job: Job,
        emit: Emit,
        saver: Saver,
        *,
        device: torch.device,
        optimizer: Any,
        as_tensors: AsTensors,
        scaler: Any = None,
    ) -> None:
        self.job = job
        self.emit = emit
        self.saver = saver
        self.device = device
        self.optimizer = optimizer
        self.scaler = scaler
        self.as_tensors = as_tensors
        self.flow = Flow(job)
        self.meter = Meter()
        self.pace = Pace(device)
        self.step = 0
        self.loader: StepLoader | None = None
        train = job.config.train
        shape = {"total_steps": len(job.steps), "warmup": train.warmup, "kind": train.schedule}
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule.factor(step, **shape))
        self.losses = torch.zeros((), device=device)
        self.grad_norm: Any = 0.0
        self.learning_rate = 0.0
        self.reported_dtypes = False
        self.random_state = RandomState.now()

    @abstractmethod
    def begin(self) -> None:
        """Make the model ready to train, before the first step of this attempt."""

    @abstractmethod
    def gradients(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The gradients of one step; returns this process's share of the step's loss, in nats.

        The loss of a step is divided by the supervised tokens of all its micro-batches on all processes.
        """

    @abstractmethod
    def sum_up(self) -> None:
        """Sum the gradients up over all processes."""

    @abstractmethod
    def clip(self) -> torch.Tensor:
        """The norm of the gradient over all processes, which is cut to the largest allowed."""

    @abstractmethod
    def apply(self) -> None:
        """The optimiser's step, and what follows from it."""

    @abstractmethod
    def loss_sum(self, batch: Any) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""

    @abstractmethod
    def dtypes(self) -> dict[str, str]:
        """Those that really came out: part -> dtype."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the state of a checkpoint."""
        state.restore(checkpoint, self.parts(), rank=self.job.rank)

    def resume(self) -> None:
        """Take up the checkpoint of the job, where there is one, and hold the evaluation that it still owes."""
        checkpoint = self.job.resume
        if checkpoint is None:
            return
        self.restore(checkpoint)
        schedule.continue_at(self.schedule, checkpoint.step)
        self.step = checkpoint.step
        self.random_state = RandomState.now()
        if self.flow.resume(checkpoint, has_best=self.saver.has_best(checkpoint)):
            self.evaluate()

    def train(self) -> None:
        """Make the steps that are left."""
        self.begin()
        self.loader = step_loader(self.job, self.as_tensors)
        self.job.watchdog.beat("step")
        self.meter = Meter()
        gc.collect()
        gc.freeze()  # the model's hundred thousand objects are not looked through again
        try:
            steps = iter(self.loader)
            while (inputs := self.next_of(steps)) is not None:
                self.make_step(inputs)
                self.random_state = RandomState.now()
                self.emit(StepDone(step=self.step))
                self.do_what_is_due()
                if self.flow.ended or self.flow.stopped_by:
                    return
        finally:
            gc.unfreeze()

    def next_of(self, steps: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """What the loader has for the next step, once it is there; None after the last."""
        with self.meter.spent(DATA):
            return next(steps, None)

    def make_step(self, inputs: dict[str, Any]) -> None:
        """One optimiser step: forward and backward of every micro-batch, then the update."""
        with self.meter.spent(PASSES):
            with self.pace.own():
                loss = self.gradients(inputs)
            with collectives.waiting(self.job.peers):
                self.sum_up()
                self.grad_norm = self.clip()
                scale = self.scaler.get_scale() if self.scaler else None
                guards.check_step(loss, self.grad_norm, step=self.step + 1, scale=scale)
            self.pace.settle()
        with self.meter.spent(OPTIMIZER):
            self.update()
        self.meter.add(**inputs["counts"])
        self.losses += loss
        self.step += 1

    def update(self) -> None:
        """The optimiser's step and the schedule's."""
        self.apply()
        self.learning_rate = float(self.schedule.get_last_lr()[0])
        self.schedule.step()

    def do_what_is_due(self) -> None:
        """Log, evaluate and save, as the step that ended asks for."""
        due = self.flow.after(self.step)
        saves = due.save
        if due.log:
            self.log()
        if due.evaluate:
            saves |= self.evaluate()
        if saves:
            self.commit()

    def log(self) -> None:
        """The metric line of the steps since the last one."""
        began = time.monotonic()
        if not self.reported_dtypes:
            self.reported_dtypes = True
            found = self.dtypes()
            dtypes.check(found, self.job.plan)
            self.emit(Dtypes(found=found))
        losses = self.losses
        if self.job.world_size > 1:
            torch.distributed.all_reduce(losses)
        loss = float(losses) / self.meter.steps
        line = self.meter.line(
            self.job,
            self.step,
            loss=loss,
            learning_rate=self.learning_rate,
            grad_norm=float(self.grad_norm),
            passes_seconds=self.pace.taken(),
        )
        self.emit(line)
        self.losses = torch.zeros_like(losses)
        self.meter = Meter.after_line(began)

    def evaluate(self) -> bool:
        """Loss over the validation part; returns True where this step is to be kept for it."""
        self.emit(Doing(what="evaluating", step=self.step))
        inputs = self.evaluation_inputs()
        result = evaluate(self.job.model, inputs, self.loss_sum, step=self.step, poll=self.poll_together)
        self.meter.pause(result.seconds)
        if not math.isfinite(result.loss):
            raise guards.diverged(self.step, f"the evaluation loss is {result.loss}")
        self.emit(result)
        return self.flow.judge(self.step, result.loss)

    def evaluation_inputs(self) -> Iterator[tuple[Any, int]]:
        """The validation part of this process, and how many supervised tokens each batch holds."""
        for batch in self.job.evaluation or ():
            tensors, _ = self.as_tensors(batch)
            yield tensors, batch.supervised_tokens

    def commit(self) -> None:
        """Save the last step that was completed."""
        progress = self.flow.progress(self.step)
        self.meter.pause(self.saver.save(progress, self.parts(), random_state=self.random_state))

    def parts(self) -> Stateful:
        """What has a state of its own besides the adapter."""
        return {"optimizer": self.optimizer, "scaler": self.scaler}

    def poll(self) -> None:
        """A sign of life; and the end, where a signal came. Processes that train together end between steps."""
        self.job.watchdog.beat()
        if self.job.world_size == 1 and signals.requested():
            raise StopNow

    def poll_together(self) -> None:
        """The same in evaluation, where all processes take the same turns."""
        self.job.watchdog.beat()
        if collectives.any_of(bool(signals.requested())):
            raise StopNow

    def close(self) -> None:
        """End the data workers."""
        if self.loader is not None:
            self.loader.close()
