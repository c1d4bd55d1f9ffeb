"""Saving and continuing, for every backend: what is committed, by whom, and where a run goes on."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from loradock.distributed import collectives
from loradock.errors import NoCheckpoint
from loradock.files import sidecar
from loradock.model.adapters import trainable
from loradock.training import guards
from loradock.training.checkpoint import state
from loradock.training.checkpoint.manifest import MANIFEST, DamagedCheckpoint, read_manifest
from loradock.training.checkpoint.state import RandomState, Stateful
from loradock.training.checkpoint.store import Checkpoint, visible
from loradock.training.events import Doing, Emit, Saved
from loradock.training.job import Job
from loradock.training.run_dir import disk_space
from loradock.training.run_dir.recorded import Count


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stood when it was saved, and what it had found out: kept in the checkpoint's manifest.

    `step` counts optimiser steps, and is the data cursor; `evaluated_step` is the last one whose evaluation was held.
    `ended` says why there is nothing left to train, where that is so. `decided` are the plan's values to keep.
    """

    step: Count
    evaluated_step: Count = 0
    best_loss: float | None = None
    best_step: Count | None = None
    ended: str | None = None
    decided: dict[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Progress:
        """What the manifest keeps; fields of a later version are passed over. NoCheckpoint where one is another kind.

        What was decided is checked as the configuration that it becomes; see `run_dir.resume.held`.
        """
        try:
            return PROGRESS.validate_json(json.dumps(checkpoint.progress), strict=True)
        except ValidationError as error:
            what = f"{checkpoint.path} was written by another version of loradock"
            problems = sidecar.wrong(error, checkpoint.path / MANIFEST, "progress")
            raise NoCheckpoint(what, hint="--fresh or another --output starts a new run", problems=problems) from error


PROGRESS = TypeAdapter(Progress)


class Saver:
    """Commits the checkpoints of one run. Every process calls `save`; rank 0 writes."""

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.last_step = job.resume.step if job.resume else 0
        self.has_committed = False

    def save(self, progress: Progress, parts: Stateful, *, random_state: RandomState) -> float:
        """Commit a checkpoint of the model and `parts`; returns the seconds that it took.

        Raises Diverged where a tensor is not finite, DiskFull before anything is written where it will not fit, and
        what `Checkpoints.commit` raises; then nothing appears.
        """
        began = time.monotonic()
        job, step = self.job, progress.step
        job.watchdog.beat("save")
        self.emit(Doing(what="saving", step=step))
        guards.check_state(trainable(job.model), step=step, what="a weight")
        guards.check_state(state.tensors_of(parts), step=step, what="the optimiser's state")
        states = collectives.gathered(random_state)
        with collectives.together("saving the checkpoint"):
            if states is not None:
                self._commit(progress, parts, states)
        self.last_step, self.has_committed = step, True
        job.watchdog.beat("step")
        seconds = time.monotonic() - began
        self.emit(Saved(step=step, directory=job.checkpoints.folder / f"checkpoint-{step}", seconds=seconds))
        return seconds

    def _commit(self, progress: Progress, parts: Stateful, states: list[RandomState]) -> None:
        files = state.as_files(self.job.model, parts, random_states=states)
        disk_space.before_save(self.job.checkpoints.folder, checkpoint_bytes=sum(map(len, files.values())))
        kept = self._best_steps() | {progress.best_step} if self.job.config.keeps_best else set()
        self.job.checkpoints.commit(
            progress.step, files=files, progress=asdict(progress), keep_besides={step for step in kept if step}
        )

    def has_best(self, checkpoint: Checkpoint) -> bool:
        """True where the best checkpoint that this one names is there."""
        best = Progress.of(checkpoint).best_step
        return bool(best) and (self.job.checkpoints.folder / f"checkpoint-{best}").is_dir()

    def _best_steps(self) -> set[int | None]:
        """The best steps that the checkpoints which stay refer to: a run that falls back to one needs its best one."""
        steps: set[int | None] = set()
        for _, path in visible(self.job.checkpoints.folder)[: self.job.checkpoints.keep]:
            with contextlib.suppress(DamagedCheckpoint):
                steps.add(read_manifest(path)["progress"].get("best_step"))
        return steps


class Beginning:
    """The trainable weights as a run began with them, on the host: what it goes back to before its first checkpoint."""

    def __init__(self, model: Any) -> None:
        self.weights = [parameter.detach().cpu().clone() for parameter in trainable(model)]
        self.random = RandomState.now()

    def restore(self, model: Any) -> None:
        """Put weights and random state back."""
        with torch.no_grad():
            for parameter, weight in zip(trainable(model), self.weights, strict=True):
                parameter.copy_(weight)
        self.random.restore()
