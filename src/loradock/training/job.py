"""A job: all that training needs, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from loradock.config.schema import RunConfig
from loradock.data.steps import Evaluation, Steps
from loradock.distributed.heartbeat import Peers
from loradock.distributed.watchdog import Watchdog
from loradock.errors import ModelError
from loradock.plan.plan import Plan
from loradock.training.checkpoint.store import Checkpoint, Checkpoints
from loradock.training.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How training ended. `best_step` is the checkpoint with the lowest evaluation loss, where one is kept."""

    steps: int
    ended: str
    seconds: float
    best_step: int | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a backend needs. `steps` and `evaluation` come from `data.steps`, sharded for this rank.

    `resume` is the verified checkpoint that the run continues from; `watchdog` wants a beat for every micro-batch.
    `peers` are the other ranks, where there are any. `initial`: the adapter that the run began with, on the device, in
    the order of the trainable parameters; None where that does nothing, or the objective has no use for it.
    `stop_after`: once this step is evaluated and saved, the run is stopped as by a signal; None: at its end.
    """

    config: RunConfig
    plan: Plan
    objective: Objective
    model: Any
    tokenizer: Any
    steps: Steps
    evaluation: Evaluation | None
    directory: Path
    checkpoints: Checkpoints
    resume: Checkpoint | None
    watchdog: Watchdog
    world_size: int
    rank: int
    peers: Peers | None = None
    initial: tuple[torch.Tensor, ...] | None = None
    stop_after: int | None = None

    def without_cache(self) -> Job:
        """The same job, and the same bits, with no layer's weights kept dense."""
        why = "the GPU ran out of memory with dense weights on it"
        return replace(self, plan=self.plan.with_value("cached_layers", 0, why=why))

    def with_micro_batch(self, micro_batch: int) -> Job:
        """The same job in smaller passes."""
        evaluation = self.evaluation.reshaped(micro_batch) if self.evaluation is not None else None
        why = "the GPU ran out of memory with a larger micro-batch"
        passes = self.plan.accumulation.value * self.plan.micro_batch.value // micro_batch
        plan = self.plan.with_value("micro_batch", micro_batch, why=why).with_value("accumulation", passes, why=why)
        return replace(
            self,
            plan=plan,
            steps=self.steps.reshaped(micro_batch),
            evaluation=evaluation,
        )


class Unsound(ModelError):
    """The backend cannot train this very model, or does not compute it rightly: another one may."""


class Leaking(ModelError):
    """Documents that are packed see one another in this very model: padded ones do not."""
