"""What an engine is: a job in, events out while it runs, an outcome at the end.

Every engine consumes the same optimiser steps (`data.steps`), in the same order, and reports the same events, so that
one can be held against another. The data cursor of a run is its step number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from loradock.config.schema import RunConfig
from loradock.distributed.heartbeat import Peers
from loradock.distributed.watchdog import Watchdog
from loradock.errors import ModelError
from loradock.plan.context import Decision
from loradock.plan.plan import Plan
from loradock.training.checkpoint.store import Checkpoint, Checkpoints


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """An optimiser step ended. Emitted for each step, without reading anything back from the device."""

    step: int


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Metrics over the steps since the last such line.

    `loss` is the mean over supervised tokens, in nats; `tokens` are real ones (no padding), summed over all
    processes; `memory_bytes` is the peak that the allocator reserved on this process's card (0 on a CPU). `phases`:
    seconds of this process by what it did (see `meter`); `logging` is that of the line before, not in `seconds`.
    `rank_seconds`: of a step, what each process took for its own part, without waiting for the others and as if all had
    as many tokens; its keys are `RANK@HOST`. None for one process, and where the engine cannot tell.
    """

    step: int
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    supervised_tokens: int
    padding_share: float
    tokens_per_second: float
    samples_per_second: float
    seconds: float
    memory_bytes: int
    phases: dict[str, float]
    rank_seconds: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Loss over every supervised token of the validation part, in nats; `perplexity` is its exponential."""

    step: int
    loss: float
    perplexity: float
    supervised_tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What goes on between the steps: `training`, `evaluating` or `saving`, after this step."""

    what: str
    step: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint was written, in so many seconds."""

    step: int
    directory: Path
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """The dtypes that really came out, once the first step was made: part -> dtype."""

    found: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The card was full: the run went back to `step` and goes on with less of what a decision had given it.

    `decision` is `cached_layers` or `micro_batch`. The global batch stays as it was.
    """

    step: int
    decision: str
    value: int
    before: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What an engine decided or found out once it had the model: each with its reason."""

    decisions: tuple[Decision, ...]


Event = StepDone | StepResult | EvalResult | Doing | Saved | Dtypes | Shrunk | Decided


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How training ended. `best_step` is the checkpoint with the lowest evaluation loss, where one is kept."""

    steps: int
    ended: str
    seconds: float
    best_step: int | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that an engine needs. `steps` and `evaluation` come from `data.steps`, sharded for this process.

    `resume` is the verified checkpoint that the run continues from; `watchdog` wants a beat for every micro-batch.
    `peers` are the other processes of the run, where there are any.
    """

    config: RunConfig
    plan: Plan
    model: Any
    tokenizer: Any
    steps: Any
    evaluation: Any | None
    directory: Path
    checkpoints: Checkpoints
    resume: Checkpoint | None
    watchdog: Watchdog
    world_size: int
    rank: int
    peers: Peers | None = None

    def without_cache(self) -> Job:
        """The same job, and the same bits, with no layer's weights kept dense."""
        why = "the card was full with dense weights on it"
        return replace(self, plan=self.plan.with_value("cached_layers", 0, why=why))

    def with_micro_batch(self, micro_batch: int) -> Job:
        """The same job in smaller passes."""
        evaluation = self.evaluation.reshaped(micro_batch) if self.evaluation is not None else None
        why = "the card was full with a larger micro-batch"
        passes = self.plan.accumulation.value * self.plan.micro_batch.value // micro_batch
        plan = self.plan.with_value("micro_batch", micro_batch, why=why).with_value("accumulation", passes, why=why)
        return replace(
            self,
            plan=plan,
            steps=self.steps.reshaped(micro_batch),
            evaluation=evaluation,
        )


Emit = Callable[[Event], None]


class Unsound(ModelError):
    """The engine cannot train this very model, or does not compute it rightly: another engine may."""


class Engine(Protocol):
    """A training loop."""

    name: str

    def prepare(self, job: Job) -> tuple[str, ...]:
        """Look at the real model before anything is trained, by itself on each process; what to tell of it.

        Raises Unsound, or ModelError where no other engine would do better.
        """
        ...

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan, from `job.resume` where there is one, and `emit` what happens.

        Raises Diverged before a step with a non-finite loss or gradient, OutOfMemory when the card is full with one
        row, Stopped or Interrupted after a signal (with a checkpoint of the last step, where one was made).
        """
        ...
