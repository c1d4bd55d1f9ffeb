"""Saving and continuing, for every backend: what is committed, by whom, and where a run goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import TypeAdapter, ValidationError

from loradock.distributed import collectives
from loradock.errors import NoCheckpoint
from loradock.files import sidecar
from loradock.machine import Host, probe
from loradock.model.adapters import trainable
from loradock.plan.plan import Decision
from loradock.text.amounts import size_text
from loradock.text.terminal import first_line
from loradock.training import guards
from loradock.training.checkpoint import state
from loradock.training.checkpoint.manifest import MANIFEST, DamagedCheckpoint, read_manifest
from loradock.training.checkpoint.snapshot import Snapshot, on_host
from loradock.training.checkpoint.state import RandomState, Stateful
from loradock.training.checkpoint.store import Checkpoint, visible
from loradock.training.events import Decided, Doing, Emit, Saved
from loradock.training.job import Job
from loradock.training.run_dir import disk_space
from loradock.training.run_dir.recorded import Count

SPARE_BYTES = 256 << 20
"""Of host memory, left to what else a run takes where a copy of its state is begun."""


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


@dataclass(kw_only=True)
class Commit:
    """One that was begun at a time of the monotonic clock. `work` gives when it ended; None where rank 0 does it."""

    step: int
    began: float
    stopped_seconds: float = 0.0
    work: Future[float] | None = None


class Saver:
    """Commits the checkpoints of one run. Every process calls `save` and `settle`; rank 0 writes.

    The steps wait for a copy of the state in host memory; a thread writes and commits that, one at a time. What it
    committed, or why it could not, is told by `look` and `settle`, in the thread that trains, and at the latest when
    the context of the saver is left.
    """

    def __init__(self, job: Job, emit: Emit) -> None:
        self.job = job
        self.emit = emit
        self.last_step = job.resume.step if job.resume else 0
        self.has_committed = False
        self.snapshot = Snapshot()
        self.decided: Decision[str] | None = None
        self.commit: Commit | None = None
        self.is_settled = True
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="commit")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """However training ended, the commit that runs comes to its end and is told. Raises what it raised."""
        with self.pool:
            self._finish_own()

    def save(self, progress: Progress, parts: Stateful, *, random_state: RandomState, is_last: bool) -> None:
        """Take a checkpoint of the model and `parts`, and commit it beside the steps that follow.

        It is committed in here where it `is_last`, or where host memory has no room for the copy. Raises Diverged where
        a tensor is not finite, and what the commit before raised, or this one in here: DiskFull where it will not fit,
        before anything is written, and as `Checkpoints.commit`; then nothing appears.
        """
        self.settle()
        began = time.monotonic()
        job, step = self.job, progress.step
        job.watchdog.beat("save")
        self.emit(Doing(what="saving", step=step))
        guards.check_state(trainable(job.model), step=step, what="a weight")
        guards.check_state(state.tensors_of(parts), step=step, what="the optimiser's state")
        states, copy = collectives.gathered(random_state), None
        self.commit, self.is_settled = Commit(step=step, began=began), False
        with collectives.together("saving the checkpoint"):
            if states is not None:
                content = state.of_run(job.model, parts, random_states=states)
                copy = None if is_last else self._copied(content)
                self.commit.work = self.pool.submit(self._commit, progress, copy or on_host(content))
        self.commit.stopped_seconds = time.monotonic() - began
        if is_last:
            self.settle()
        elif states is not None and copy is None:
            self._finish_own()
        job.watchdog.beat("step")

    def look(self) -> None:
        """Tell what was committed since. Raises what the commit raised; waits for nothing."""
        if self.commit and self.commit.work and self.commit.work.done():
            self._finish_own()

    def settle(self, *, is_agreed: bool = True) -> None:
        """Wait for the commit that runs, and tell it. Raises what it raised. All processes, or one that ends alone.

        That one knows of rank 0's commit by its directory, which is there once it is committed.
        """
        if self.is_settled:
            return
        with collectives.together("saving the checkpoint") if is_agreed else contextlib.nullcontext():
            self._finish_own()
        if self.commit and (is_agreed or self._directory(self.commit).is_dir()):
            self._tell(self.commit, ended=time.monotonic())
        self.commit, self.is_settled = None, True

    def _finish_own(self) -> None:
        """Wait for the commit that this process writes, where there is one, and tell it."""
        if not (commit := self.commit) or not (work := commit.work):
            return
        self.commit = None
        if not work.done():
            self.job.watchdog.beat("save")
        began = time.monotonic()
        try:
            concurrent.futures.wait([work])
        finally:  # a second Ctrl-C ends no commit, and goes on once this one has ended
            ended = work.result()
            commit.stopped_seconds += time.monotonic() - began
            self._tell(commit, ended=ended)

    def _tell(self, commit: Commit, *, ended: float) -> None:
        self.last_step, self.has_committed = commit.step, True
        seconds = {"seconds": commit.stopped_seconds, "commit_seconds": ended - commit.began}
        self.emit(Saved(step=commit.step, directory=self._directory(commit), **seconds))

    def _directory(self, commit: Commit) -> Path:
        return self.job.checkpoints.folder / f"checkpoint-{commit.step}"

    def _copied(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """A copy in host memory; None where that has no room for it."""
        need_bytes, copy = self.snapshot.missing_bytes(content), None
        free_bytes = probe.memory_free(Host()) if need_bytes else 0
        if need_bytes and need_bytes + SPARE_BYTES > free_bytes:
            why = f"a copy of the state needs {size_text(need_bytes)} of host memory; {size_text(free_bytes)} are free"
        else:
            try:
                copy = self.snapshot.take(content)
                why = f"a copy of the state takes {size_text(self.snapshot.taken_bytes)} of host memory"
            except (MemoryError, RuntimeError) as error:
                self.snapshot = Snapshot()
                first = first_line(error)
                why = f"host memory cannot take a copy of the state: {first}"
        decision = Decision(name="saving", value="in the step" if copy is None else "beside the steps", why=why)
        if decision != self.decided:
            self.decided = decision
            self.emit(Decided(decisions=(decision,)))
        return copy

    def _commit(self, progress: Progress, content: dict[str, Any]) -> float:
        """In the thread: write and commit it; returns when that ended."""
        checkpoints = self.job.checkpoints
        with self.job.watchdog.beside("save"):
            disk_space.before_save(checkpoints.folder, checkpoint_bytes=state.size_bytes(content))
            best = self._best_steps() | {progress.best_step} if self.job.config.keeps_best else set[int | None]()
            checkpoints.commit(
                progress.step,
                files=state.as_files(content),
                progress=asdict(progress),
                keep_besides={step for step in best if step},
            )
        return time.monotonic()

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
