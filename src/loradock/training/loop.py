"""The loop: one optimiser step after another, each a few micro-batches, and what is due between. Read `train` first."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed

from loradock.distributed import collectives
from loradock.distributed.place import continuing
from loradock.distributed.stragglers import Pace
from loradock.errors import Interrupted, LoradockError, Stopped
from loradock.model import dtypes
from loradock.process import signals
from loradock.text.terminal import first_line
from loradock.training import device_memory, guards, schedule, sdpa
from loradock.training.backends.base import Backend
from loradock.training.batches import StepLoader, step_loader
from loradock.training.cadence import Flow
from loradock.training.checkpoint.state import RandomState
from loradock.training.evaluation import evaluate
from loradock.training.events import Decided, Doing, Dtypes, Emit, StepDone
from loradock.training.job import Job, Outcome
from loradock.training.meter import DATA, OPTIMIZER, PASSES, Meter
from loradock.training.objectives.base import parts_by_name
from loradock.training.passes import StepInputs
from loradock.training.recovery import Full, smaller
from loradock.training.saving import Beginning, Saver
from loradock.training.spacing import Kind


class StopNow(Exception):
    """A signal asks to end before the step (or the evaluation) that runs is done; what it has done is dropped."""


def train(job: Job, backend: Backend, emit: Emit) -> Outcome:
    """Train to the end of the plan, from `job.resume` where there is one, and `emit` what happens.

    Out of GPU memory, it goes back to the last checkpoint and continues with less. Raises Diverged before a step with a
    non-finite loss or gradient, OutOfMemory where nothing is left to give up, Stopped or Interrupted after a signal
    (with a checkpoint of the last step, where one was made).
    """
    began = time.monotonic()
    torch.use_deterministic_algorithms(bool(job.config.deterministic) and job.plan.device.value == "cuda")
    filling: Any = torch.utils.deterministic
    filling.fill_uninitialized_memory = False  # it would be a launch for each new tensor
    torch.backends.cuda.matmul.allow_tf32 = bool(job.plan.tf32.value)
    device_memory.forbid_more(job.config.train.memory_fraction)
    sdpa.allow(job.config.model.sdpa_kernel)
    beginning = Beginning(job.model) if job.resume is None else None
    with signals.deferred(), Saver(job, emit) as saver:
        while isinstance(ended := Loop(job, backend, emit, saver).run(), Full):
            job = smaller(job, ended, saver, beginning, emit)
    backend.finish()
    return replace(ended, seconds=time.monotonic() - began)


def stopped(job: Job, saver: Saver, by: str) -> LoradockError:
    """How a signal ended the run: with a new step committed (75), or without (76)."""
    hint = continuing(job.directory)
    if job.stop_after is not None and not signals.requested():
        hint = hint.replace("the same command", "the same command without --stop-after", 1)
    if not saver.has_committed:
        return Interrupted(f"stopped by {by} before a new step was committed", hint=hint)
    return Stopped(f"stopped by {by}; step {saver.last_step} is committed", hint=hint)


class Loop:
    """One attempt at a job."""

    def __init__(self, job: Job, backend: Backend, emit: Emit, saver: Saver) -> None:
        self.job = job
        self.backend = backend
        self.emit = emit
        self.saver = saver
        self.flow = Flow(job)
        self.meter = Meter()
        self.step = 0
        self.loader: StepLoader | None = None
        self.grad_norm: Any = 0.0
        self.learning_rate = 0.0
        self.reported_dtypes = False
        self.random_state = RandomState.now()

    def run(self) -> Outcome | Full:
        """Train from where the job begins. Raises Stopped or Interrupted after a signal."""
        flow = self.flow
        try:
            self.begin()
            self.stop_as_asked()
            if not (flow.ended or flow.stopped_by):
                self.start()
                steps = iter(self.loader or ())
                while not (flow.ended or flow.stopped_by) and (inputs := self.next_of(steps)) is not None:
                    self.make_step(inputs)
                    self.do_what_is_due()
        except torch.OutOfMemoryError as error:
            return Full(step=self.step + 1, what=first_line(error))
        except (StopNow, RuntimeError) as error:
            if not isinstance(error, StopNow) and not signals.requested():
                raise  # else it is a data worker that the signal ended, too
            flow.stopped_by = signals.requested() or "another rank of the run"
            # Ranks save together, and only a StopNow comes to all of them.
            is_agreed = isinstance(error, StopNow) or self.job.world_size == 1
            self.saver.settle(is_agreed=is_agreed)
            if is_agreed and self.step > self.saver.last_step:
                self.log_whole_steps()
                self.commit()
        finally:
            self.close()
        if flow.stopped_by:
            raise stopped(self.job, self.saver, flow.stopped_by)
        return Outcome(
            steps=self.step,
            ended=flow.ended or "last step",
            seconds=0.0,
            best_step=flow.best_step if self.job.config.keeps_best else None,
        )

    def begin(self) -> None:
        """Make the backend ready, take up the job's checkpoint, and hold the evaluation that it still owes."""
        job, train = self.job, self.job.config.train
        self.pace = Pace(next(job.model.parameters()).device)
        self.backend.begin(job, self.pace, self.emit)
        job.objective.begin(self.backend)
        self.losses = torch.zeros(1 + len(job.objective.parts), device=self.backend.device)
        self.measured = torch.zeros_like(self.losses)
        total_steps = len(job.steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.backend.optimizer, lambda step: schedule.factor(step, total_steps=total_steps, train=train)
        )
        self.resume()

    def resume(self) -> None:
        """Take up the checkpoint of the job, where there is one, and hold the evaluation that it still owes."""
        checkpoint = self.job.resume
        if checkpoint is None:
            return
        self.backend.restore(checkpoint)
        schedule.continue_at(self.schedule, checkpoint.step)
        self.step = checkpoint.step
        self.random_state = RandomState.now()
        if self.flow.resume(checkpoint, has_best=self.saver.has_best(checkpoint)):
            self.evaluate()

    def start(self) -> None:
        """The steps that are left come next."""
        self.backend.start(self.step)
        self.loader = step_loader(self.job, self.backend.tensors)
        self.job.watchdog.beat("step")
        self.meter = Meter()
        gc.collect()
        gc.freeze()  # the model's hundred thousand objects are not looked through again

    def next_of(self, steps: Iterator[StepInputs]) -> StepInputs | None:
        """What the loader has for the next step, once it is there; None after the last."""
        with self.meter.spent(DATA):
            return next(steps, None)

    def make_step(self, inputs: StepInputs) -> None:
        """One optimiser step: the passes of the objective, then the update."""
        backend, objective = self.backend, self.job.objective
        with self.meter.spent(PASSES):
            with self.pace.own():
                backend.begin_step()
                total = objective.step(backend, inputs, step=self.step, poll=self.poll)
            with collectives.waiting(self.job.peers):
                backend.reduce_gradients()
                self.grad_norm = backend.clip()
                loss_scale = backend.scaler.get_scale() if backend.scaler else None
                guards.check_step(total[0], self.grad_norm, step=self.step + 1, scale=loss_scale)
            self.pace.settle()
        with self.meter.spent(OPTIMIZER):
            backend.update()
            self.learning_rate = float(self.schedule.get_last_lr()[0])
            self.schedule.step()
        self.meter.add(**inputs.counts)
        is_measured = ~total.isnan()
        self.measured += is_measured
        self.losses += torch.where(is_measured, total, 0.0)
        self.step += 1
        self.random_state = RandomState.now()
        self.emit(StepDone(step=self.step))

    def do_what_is_due(self) -> None:
        """Log, evaluate and save, as the step that ended asks for."""
        self.saver.look()
        due = self.flow.after(self.step)
        saves = due.save
        if due.log:
            self.log()
        if due.evaluate:
            saves |= self.evaluate()
        if saves:
            self.commit()
        self.stop_as_asked()

    def stop_as_asked(self) -> None:
        """The run ends after the step of `job.stop_after`, unless that is its last anyway."""
        last = self.job.stop_after
        if last is not None and last <= self.step < len(self.job.steps) and not self.flow.ended:
            self.flow.stopped_by = f"--stop-after {last}"

    def log(self) -> None:
        """The metric line of the steps since the last one."""
        began = time.monotonic()
        if not self.reported_dtypes:
            self.reported_dtypes = True
            with self.backend.evaluating():
                found = self.backend.dtypes()
            dtypes.check(found, self.job.plan)
            self.emit(Dtypes(found=found))
        self.backend.report()
        losses = self.losses
        if self.job.world_size > 1:
            torch.distributed.all_reduce(losses)
        loss, *parts = (losses / self.measured).tolist()
        load = self.backend.expert_load
        line = self.meter.line(
            self.job,
            self.step,
            loss=loss,
            parts=parts_by_name(self.job.objective.parts, parts),
            learning_rate=self.learning_rate,
            grad_norm=float(self.grad_norm),
            passes_seconds=self.backend.passes_seconds(self.pace),
            experts=load.window(self.backend.device) if load else {},
        )
        self.emit(line)
        self.losses, self.measured = torch.zeros_like(losses), torch.zeros_like(losses)
        self.meter = Meter.after_line(began)

    def log_whole_steps(self) -> None:
        """The metric line of the steps before the one that a signal dropped: a run that continues has not theirs."""
        if self.meter.steps:
            self.meter.leave_out_dropped()
            self.log()

    def evaluate(self) -> bool:
        """Evaluate on the validation part; returns True where this step is to be kept for it."""
        batches = self.job.evaluation
        assert batches is not None
        self.emit(Doing(what="evaluating", step=self.step))
        job = self.job
        result = evaluate(
            job.objective, self.backend, batches, model=job.model, step=self.step, poll=self.poll_together
        )
        self.meter.pause(result.seconds)
        if not math.isfinite(result.loss):
            raise guards.diverged(self.step, f"the evaluation loss is {result.loss}")
        self.emit(result)
        is_kept = self.flow.judge(self.step, result.judged_by(job.config.checkpoints.metric))
        self.space("evaluate", result.seconds)
        return is_kept

    def commit(self) -> None:
        """Save the last step that was completed."""
        began = time.monotonic()
        progress, is_last = self.flow.progress(self.step), self.flow.is_ending(self.step)
        with self.backend.saved_parts() as parts:
            self.saver.save(progress, parts, random_state=self.random_state, is_last=is_last)
        seconds = time.monotonic() - began
        self.meter.pause(seconds)
        self.space("save", seconds)

    def space(self, kind: Kind, seconds: float) -> None:
        """One took so long: from here on they may come more often or less."""
        if not self.flow.is_ending(self.step) and (decision := self.flow.spacing.measured(kind, seconds)):
            self.emit(Decided(decisions=(decision,)))

    def poll(self) -> None:
        """A sign of life; and the end, where a signal came. Ranks that train together end between steps."""
        self.job.watchdog.beat()
        if self.job.world_size == 1 and signals.requested():
            raise StopNow

    def poll_together(self) -> None:
        """The same in evaluation, where all ranks take the same turns."""
        self.job.watchdog.beat()
        if collectives.any_of(bool(signals.requested())):
            raise StopNow

    def close(self) -> None:
        """End the data workers, and leave the model as it was."""
        gc.unfreeze()
        self.backend.end()
        if self.loader is not None:
            self.loader.close()
