"""The loop of the sharded engine: an optimiser step after another, each a few micro-batches, and what is due between.

All processes make the same number of passes in the same order, since each pass gathers weights from all of them: one
that has fewer micro-batches in a step than another runs idle ones, of which nothing is learned.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed

from loradock import signals
from loradock.data.collate import IGNORED
from loradock.engine import guards, ranks, schedule, training_state
from loradock.engine.attempts import StopNow
from loradock.engine.base import Doing, Dtypes, Emit, Job, StepDone
from loradock.engine.evaluation import evaluate
from loradock.engine.feed import StepLoader, step_loader
from loradock.engine.flow import Flow
from loradock.engine.meter import DATA, OPTIMIZER, PASSES, Meter
from loradock.engine.saving import Saver
from loradock.engine.sharded.adapters import as_one
from loradock.engine.sharded.optimizer import Kept, ShardedAdamW
from loradock.engine.sharded.sharding import device_of
from loradock.engine.training_state import RandomState
from loradock.engine.trl.inputs import evaluation_inputs, model_inputs
from loradock.model import dtypes
from loradock.model.adapters import trainable


class ShardedTrainer:
    """One attempt at a job by the sharded engine; an `engine.attempts.Trainer`."""

    def __init__(self, job: Job, emit: Emit, saver: Saver, *, device: torch.device) -> None:
        train = job.config.train
        self.job = job
        self.emit = emit
        self.saver = saver
        self.model = job.model
        self.device = device
        self.flow = Flow(job)
        self.meter = Meter()
        self.step = 0
        self.loader: StepLoader | None = None
        self.optimizer = ShardedAdamW(
            trainable(job.model), learning_rate=train.learning_rate, weight_decay=train.weight_decay
        )
        shape = {"total_steps": len(job.steps), "warmup": train.warmup, "kind": train.schedule}
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: schedule.factor(step, **shape))
        self.losses = torch.zeros((), device=device)
        self.steps_since_line = 0
        self.grad_norm: Any = 0.0
        self.learning_rate = 0.0
        self.reported_dtypes = False
        self.random_state = RandomState.now()

    def resume(self) -> None:
        """Take up the checkpoint of the job, where there is one, and hold the evaluation that it still owes.

        Its adapter was taken up before the model was cut.
        """
        checkpoint = self.job.resume
        if checkpoint is None:
            return
        training_state.restore(checkpoint, {"optimizer": self.optimizer}, rank=self.job.rank)
        schedule.continue_at(self.schedule, checkpoint.step)
        self.step = checkpoint.step
        self.random_state = RandomState.now()
        if self.flow.resume(checkpoint, has_best=self.saver.has_best(checkpoint)):
            self.evaluate()

    def train(self) -> None:
        """Make the steps that are left."""
        self.model.train()
        self.loader = step_loader(self.job, model_inputs(self.job))
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
        with self.meter.spent(PASSES), ranks.waiting(self.job.peers):  # a pass waits for all at each of its layers
            loss = self.gradients(inputs)
            self.grad_norm = self.optimizer.take_gradients()
            guards.check_step(loss, self.grad_norm, step=self.step + 1)
            self.optimizer.clip(self.grad_norm, most=self.job.config.train.max_grad_norm)
        with self.meter.spent(OPTIMIZER):
            self.optimizer.step()
            self.learning_rate = float(self.schedule.get_last_lr()[0])
            self.schedule.step()
            self.optimizer.forget_gradients()
        self.meter.add(**inputs["counts"])
        self.losses += loss
        self.steps_since_line += 1
        self.step += 1

    def gradients(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The gradients of one step into the parts; returns this process's share of the step's loss, in nats.

        The loss of a step is divided by the supervised tokens of all its micro-batches on all processes. FSDP averages
        gradients over the processes, hence the factor.
        """
        scale = 1 / max(1, inputs["supervised_tokens"])
        total = torch.zeros((), device=self.device)
        for tensors in in_step(inputs["micro_batches"]):
            self.poll()
            loss = self.loss_sum(tensors) * scale
            (loss * self.job.world_size).backward()
            total += loss.detach()
        return total

    def loss_sum(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """Summed negative log-likelihood of the supervised tokens of one micro-batch, in nats."""
        on_device = {key: value.to(self.device, non_blocking=True) for key, value in tensors.items()}
        with self.autocast():
            return -self.model(**on_device, use_cache=False, fused_lm_head=True).log_probs.sum()

    def autocast(self) -> AbstractContextManager[Any]:
        """Products in the compute dtype; each adapter is used once a pass, so that no cast copy of it is kept."""
        dtype = getattr(torch, self.job.plan.value("compute_dtype"))
        if dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=False)

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
            with self.autocast():
                found = dtypes.parts(self.model, self.optimizer)
            dtypes.check(found, self.job.plan)
            self.emit(Dtypes(found=found))
        torch.distributed.all_reduce(self.losses)
        loss = float(self.losses) / self.steps_since_line
        self.emit(
            self.meter.line(
                self.job, self.step, loss=loss, learning_rate=self.learning_rate, grad_norm=float(self.grad_norm)
            )
        )
        self.losses = torch.zeros_like(self.losses)
        self.steps_since_line = 0
        self.meter = Meter.after_line(began)

    def evaluate(self) -> bool:
        """Loss over the validation part; returns True where this step is to be kept for it."""
        self.emit(Doing(what="evaluating", step=self.step))
        inputs = evaluation_inputs(self.job)
        result = evaluate(self.model, inputs, self.loss_sum, step=self.step, poll=self.poll_together)
        self.meter.pause(result.seconds)
        if not math.isfinite(result.loss):
            raise guards.diverged(self.step, f"the evaluation loss is {result.loss}")
        self.emit(result)
        return self.flow.judge(self.step, result.loss)

    def commit(self) -> None:
        """Save the last step that was completed: the adapter as one, and its whole moments."""
        began = time.monotonic()
        parts = {"optimizer": Kept(self.optimizer.whole_state()), "scaler": None}
        with as_one(self.model):
            self.saver.save(self.flow.progress(self.step), parts, random_state=self.random_state)
        self.meter.pause(time.monotonic() - began)

    def poll(self) -> None:
        """A sign of life. Processes that train together end between steps."""
        self.job.watchdog.beat()

    def poll_together(self) -> None:
        """The same in evaluation, where all processes take the same turns; and the end, where a signal came."""
        self.job.watchdog.beat()
        if ranks.any_of(bool(signals.requested())):
            raise StopNow

    def let_go(self) -> None:
        """Processes that train together cannot go back on their own: there is no other attempt."""

    def close(self) -> None:
        """End the data workers."""
        if self.loader is not None:
            self.loader.close()


def in_step(micro_batches: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of this process, and as many idle ones as the process with the most has more."""
    most = int(max(ranks.all_of(len(micro_batches))))
    last = micro_batches[-1]
    idle = {**last, "labels": torch.full_like(last["labels"], IGNORED)}
    return micro_batches + [idle] * (most - len(micro_batches))


def trainer_of(job: Job, emit: Emit, saver: Saver) -> ShardedTrainer:
    """A trainer over the sharded model of the job."""
    return ShardedTrainer(job, emit, saver, device=device_of(job.model))
