"""Out of GPU memory: what a run gives up to go on, and what to type where nothing is left."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace

import torch

from loradock.errors import OutOfMemory
from loradock.training.checkpoint.store import newest_good
from loradock.training.events import Emit, Shrunk
from loradock.training.job import Job
from loradock.training.saving import Beginning, Saver


@dataclass(frozen=True, kw_only=True)
class Full:
    """Out of GPU memory at this step; `what` is what the allocator said."""

    step: int
    what: str


def smaller(job: Job, full: Full, saver: Saver, beginning: Beginning | None, emit: Emit) -> Job:
    """The job from its last commit (or its beginning) on less GPU memory. OutOfMemory where nothing is left to give.

    First the dense weights go, which changes no bit; then the micro-batch is halved. Gradient accumulation grows as it
    shrinks, so the global batch, the order of samples and the loss stay as they were. Processes that train together
    cannot go back on their own; they give up at once.
    """
    cached, micro_batch = job.plan.cached_layers.value, job.plan.micro_batch.value
    half = halved(job)
    if job.world_size > 1 or (half == micro_batch and not cached):
        rows = f"{micro_batch}, rows of up to {job.plan.data.limit_tokens} tokens"
        raise OutOfMemory(f"out of GPU memory at step {full.step} (micro-batch {rows}): {full.what}", hint=remedy(job))
    saver.settle()
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
    emit(Shrunk(step=step, decision="micro_batch", value=half, before=micro_batch, why=why))
    return replace(job.with_micro_batch(half), resume=checkpoint)


def halved(job: Job) -> int:
    """Half of the micro-batch; at least the documents that are never split."""
    return max(job.config.objective_spec.documents_together, job.plan.micro_batch.value // 2)


def remedy(job: Job) -> str:
    """What to type where the batch shape does not fit the GPU."""
    micro_batch = job.plan.micro_batch.value
    if job.plan.cached_layers.value:
        return "--set model.cache_weights=0"
    if (half := halved(job)) < micro_batch:
        return f"--set train.micro_batch={half} --allow-change train.micro_batch"
    if not job.plan.checkpointing.value:
        return "--set train.checkpointing=true --allow-change train.checkpointing"
    return f"--set data.max_length={max(64, job.plan.data.limit_tokens // 2)} --fresh, or a larger GPU"
