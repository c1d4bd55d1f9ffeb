"""The loop: an optimiser step after another, each a few micro-batches, and what is due in between."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed

from loradock import signals
from loradock.engine import guards, ranks, schedule, training_state
from loradock.engine.attempts import StopNow
from loradock.engine.base import Decided, Doing, Dtypes, Emit, Job, StepDone
from loradock.engine.evaluation import evaluate
from loradock.engine.fast import rehearsal
from loradock.engine.fast.batch import FlatBatch
from loradock.engine.fast.graphs import graphs_of
from loradock.engine.fast.inputs import filled_up, flat_inputs
from loradock.engine.fast.model import FastModel
from loradock.engine.fast.optimizer import FlatAdamW
from loradock.engine.feed import StepLoader, step_loader
from loradock.engine.flow import Flow
from loradock.engine.meter import DATA, OPTIMIZER, PASSES, Meter
from loradock.engine.pace import Pace
from loradock.engine.saving import Saver
from loradock.engine.training_state import RandomState, Stateful
from loradock.model import dtypes
from loradock.model.adapters import trainable

CLIP_EPSILON = 1e-6


class FastTrainer:
    """One attempt at a job by the fast engine; an `engine.attempts.Trainer`."""

    def __init__(self, job: Job, emit: Emit, saver: Saver, *, model: FastModel) -> None:
        train = job.config.train
        self.job = job
        self.emit = emit
        self.saver = saver
        self.model = model
        self.device = model.adapters.values.device
        self.flow = Flow(job)
        self.meter = Meter()
        self.pace = Pace(self.device)
        self.step = 0
        self.loader: StepLoader | None = None
        self.optimizer = FlatAdamW(
            model.adapters, trainable(job.model), learning_rate=train.learning_rate, weight_decay=train.weight_decay
        )
        shape = {"total_steps": len(job.steps), "warmup": train.warmup, "kind": train.schedule}
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: schedule.factor(step, **shape))
        is_half = model.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type) if is_half else None
        self.losses = torch.zeros((), device=self.device)
        self.steps_since_line = 0
        self.grad_norm: Any = 0.0
        self.learning_rate = 0.0
        self.reported_dtypes = False
        self.random_state = RandomState.now()
        has_dropout = any(group.dropout for layer in model.layers for group in layer.groups())
        self.dropout_seed = train.seed if has_dropout else None
        self.graphs = graphs_of(model, emit) if job.plan.value("cuda_graphs") else None
        self.as_tensors = partial(flat_inputs, **filled_up(job))

    def resume(self) -> None:
        """Take up the checkpoint of the job, where there is one, and hold the evaluation that it still owes."""
        checkpoint = self.job.resume
        if checkpoint is None:
            return
        training_state.restore_adapter(self.job.model, checkpoint)
        training_state.restore(checkpoint, self.parts(), rank=self.job.rank)
        self.model.adapters.refresh()
        schedule.continue_at(self.schedule, checkpoint.step)
        self.step = checkpoint.step
        self.random_state = RandomState.now()
        if self.flow.resume(checkpoint, has_best=self.saver.has_best(checkpoint)):
            self.evaluate()

    def train(self) -> None:
        """Make the steps that are left."""
        self.model.keep_dense(self.job.plan.value("cached_layers"))
        if self.device.type == "cuda":
            self.emit(Decided(decisions=(rehearsal.found(self.model, self.job, seed=self.seed(0)),)))
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
        adapters = self.model.adapters
        with self.meter.spent(PASSES):
            with self.pace.own():
                adapters.gradient.zero_()
                loss = self.gradients(inputs)
            with ranks.waiting(self.job.peers):
                if self.job.world_size > 1:
                    torch.distributed.all_reduce(adapters.gradient)
                self.grad_norm = self.clip()
                scale = self.scaler.get_scale() if self.scaler else None
                guards.check_step(loss, self.grad_norm, step=self.step + 1, scale=scale)
            self.pace.settle()
        with self.meter.spent(OPTIMIZER):
            self.update()
        self.meter.add(**inputs["counts"])
        self.losses += loss
        self.steps_since_line += 1
        self.step += 1

    def gradients(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The gradients of one step into the flat buffer; returns this process's share of the step's loss, in nats.

        The loss of a step is divided by the supervised tokens of all its micro-batches on all processes.
        """
        scale = 1 / max(1, inputs["supervised_tokens"])
        grown = self.scaler.scale(torch.ones((), device=self.device)).item() if self.scaler else 1.0
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(inputs["micro_batches"]):
            self.poll()
            total += self.loss_and_gradients(batch, scale=scale * grown, seed=self.seed(index))
        return total / grown

    def loss_and_gradients(self, batch: FlatBatch, *, scale: float, seed: int | None) -> torch.Tensor:
        """Of one micro-batch."""
        if self.graphs is not None:
            return self.graphs.loss_and_gradients(batch.to(self.device), scale=scale)
        return self.model.loss_and_gradients(batch.to(self.device), scale=scale, seed=seed)

    def clip(self) -> torch.Tensor:
        """The norm of the gradient, which is cut to the largest allowed."""
        gradient = self.model.adapters.gradient
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        norm = torch.linalg.vector_norm(gradient)
        most = self.job.config.train.max_grad_norm
        if most:
            gradient.mul_((most / (norm + CLIP_EPSILON)).clamp(max=1.0))
        return norm

    def update(self) -> None:
        """The optimiser's step, the schedule's, and a fresh working copy."""
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.learning_rate = float(self.schedule.get_last_lr()[0])
        self.schedule.step()
        self.model.adapters.refresh()

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
            found = dtypes.fast_parts(self.model, self.job.model, self.optimizer)
            dtypes.check(found, self.job.plan)
            self.emit(Dtypes(found=found))
        losses = self.losses
        if self.job.world_size > 1:
            torch.distributed.all_reduce(losses)
        loss = float(losses) / self.steps_since_line
        line = self.meter.line(
            self.job, self.step, loss=loss, learning_rate=self.learning_rate, grad_norm=float(self.grad_norm)
        )
        own_seconds = (self.meter.phases.get(DATA, 0.0) + self.pace.taken()) / self.steps_since_line
        self.emit(replace(line, rank_seconds=ranks.by_name(own_seconds, self.job.peers)))
        self.losses = torch.zeros_like(losses)
        self.steps_since_line = 0
        self.meter = Meter.after_line(began)

    def evaluate(self) -> bool:
        """Loss over the validation part; returns True where this step is to be kept for it."""
        self.emit(Doing(what="evaluating", step=self.step))
        result = evaluate(
            self.job.model,
            self.evaluation_inputs(),
            lambda batch: self.model.loss(batch.to(self.device)),
            step=self.step,
            poll=self.poll_together,
        )
        self.meter.pause(result.seconds)
        if not math.isfinite(result.loss):
            raise guards.diverged(self.step, f"the evaluation loss is {result.loss}")
        self.emit(result)
        return self.flow.judge(self.step, result.loss)

    def evaluation_inputs(self) -> Iterator[tuple[FlatBatch, int]]:
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
        if ranks.any_of(bool(signals.requested())):
            raise StopNow

    def let_go(self) -> None:
        """Nothing was put into the model but its own weights, which stay where they are."""

    def close(self) -> None:
        """End the data workers."""
        if self.loader is not None:
            self.loader.close()

    def seed(self, micro_batch: int) -> int | None:
        """Of the dropout masks of a micro-batch: by run, step, process and place, so that it resumes exactly."""
        if self.dropout_seed is None:
            return None
        words = np.random.SeedSequence([self.dropout_seed, self.step, self.job.rank, micro_batch])
        return int(words.generate_state(1, np.uint64)[0] >> np.uint64(2))
