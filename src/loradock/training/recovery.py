"""How an engine's trainer is run: to its end, to a signal, or to a full card, where it goes on with less."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from loradock import signals
from loradock.distributed.place import continuing
from loradock.errors import Interrupted, LoradockError, OutOfMemory, Stopped
from loradock.training.cadence import Flow
from loradock.training.checkpoint.store import newest_good
from loradock.training.job import (
    Emit,
    Job,
    Outcome,
    Shrunk,
)
from loradock.training.saving import Beginning, Saver


class StopNow(Exception):
    """A signal asks to end before the step (or the evaluation) that runs is done; what it has done is dropped."""


class Trainer(Protocol):
    """One attempt at a job."""

    flow: Flow

    @property
    def step(self) -> int:
        """The last optimiser step that was completed."""
        ...

    def resume(self) -> None:
        """Take up the checkpoint of the job, where there is one, and hold the evaluation that it still owes."""
        ...

    def train(self) -> object:
        """Make the steps that are left. Raises StopNow within a step, Diverged before one."""
        ...

    def commit(self) -> None:
        """Save the last step that was completed."""
        ...

    def let_go(self) -> None:
        """Take out of the model what this attempt put in, for another to begin with."""
        ...

    def close(self) -> None:
        """End the data workers."""
        ...


MakeTrainer = Callable[[Job, Emit, Saver], Trainer]


@dataclass(frozen=True, kw_only=True)
class Full:
    """The card was full at this step; `what` is what the allocator said."""

    step: int
    what: str


def run(job: Job, emit: Emit, make_trainer: MakeTrainer) -> Outcome:
    """Train to the end of the plan; see `engine.base.Engine`. Where the card is full, again with less on it."""
    began = time.monotonic()
    torch.use_deterministic_algorithms(job.config.deterministic and job.plan.device.value == "cuda")
    torch.backends.cuda.matmul.allow_tf32 = bool(job.plan.tf32.value)
    beginning = Beginning(job.model) if job.resume is None else None
    saver = Saver(job, emit)
    while True:
        with signals.deferred():
            ended = attempt(job, emit, saver, make_trainer)
        if isinstance(ended, Outcome):
            return replace(ended, seconds=time.monotonic() - began)
        job = smaller(job, ended, saver, beginning, emit)


def attempt(job: Job, emit: Emit, saver: Saver, make_trainer: MakeTrainer) -> Outcome | Full:
    """Train from where the job begins. Raises Stopped or Interrupted after a signal."""
    trainer = make_trainer(job, emit, saver)
    flow = trainer.flow
    try:
        trainer.resume()
        if flow.ended is None:
            trainer.train()
    except torch.OutOfMemoryError as error:
        trainer.let_go()
        return Full(step=trainer.step + 1, what=str(error).splitlines()[0])
    except (StopNow, RuntimeError) as error:
        if not isinstance(error, StopNow) and not signals.requested():
            raise  # else it is a data worker that the signal ended, too
        flow.stopped_by = signals.requested() or "another process of the run"
        # Processes save together, and only a StopNow comes to all of them.
        is_agreed = isinstance(error, StopNow) or job.world_size == 1
        if is_agreed and trainer.step > saver.last_step:
            trainer.commit()
    finally:
        trainer.close()
    if flow.stopped_by:
        raise stopped(job, saver, flow.stopped_by)
    return Outcome(
        steps=trainer.step,
        ended=flow.ended or "last step",
        seconds=0.0,
        best_step=flow.best_step if job.config.checkpoints.keep_best else None,
    )


def stopped(job: Job, saver: Saver, by: str) -> LoradockError:
    """How a signal ended the run: with a new step committed (75), or without (76)."""
    hint = continuing(job.directory)
    if not saver.has_committed:
        return Interrupted(f"stopped by {by} before a new step was committed", hint=hint)
    return Stopped(f"stopped by {by}; step {saver.last_step} is committed", hint=hint)


def smaller(job: Job, full: Full, saver: Saver, beginning: Beginning | None, emit: Emit) -> Job:
    """The job from its last commit (or its beginning) on less of the card. OutOfMemory where nothing is left to give.

    First the dense weights go, which changes no bit; then the micro-batch is halved. Gradient accumulation grows as it
    shrinks, so the global batch, the order of samples and the loss stay as they were. Processes that train together
    cannot go back on their own; they give up at once.
    """
    cached, micro_batch = job.plan.cached_layers.value, job.plan.micro_batch.value
    if job.world_size > 1 or (micro_batch == 1 and not cached):
        rows = f"{micro_batch} row(s) of up to {job.plan.data.limit_tokens} tokens"
        raise OutOfMemory(
            f"the card is full at step {full.step} with a micro-batch of {rows}: {full.what}", hint=remedy(job)
        )
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    checkpoint, _ = newest_good(job.checkpoints.folder, run_id=job.checkpoints.run_id)
    if checkpoint is None and beginning is not None:
        beginning.restore(job.model)
    step = saver.last_step = checkpoint.step if checkpoint else 0
    why = f"step {full.step}: {full.what}"
    if cached:
        emit(Shrunk(step=step, decision="cached_layers", value=0, before=cached, why=why))
        return replace(job.without_cache(), resume=checkpoint)
    emit(Shrunk(step=step, decision="micro_batch", value=micro_batch // 2, before=micro_batch, why=why))
    return replace(job.with_micro_batch(micro_batch // 2), resume=checkpoint)


def remedy(job: Job) -> str:
    """What to type where the card is too small for the batch shape."""
    micro_batch = job.plan.micro_batch.value
    if job.plan.cached_layers.value:
        return "--set model.cache_weights=0"
    if micro_batch > 1:
        return f"--set train.micro_batch={micro_batch // 2} --allow-change train.micro_batch"
    if not job.plan.checkpointing.value:
        return "--set train.checkpointing=true --allow-change train.checkpointing"
    return f"--set data.max_length={max(64, job.plan.data.limit_tokens // 2)} --fresh, or a larger card"
