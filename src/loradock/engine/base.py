"""What an engine is: a job in, events out while it runs, an outcome at the end.

Every engine consumes the same optimiser steps (`data.steps`), in the same order, and reports the same events, so that
one can be held against another. The data cursor of a run is its step number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from loradock.config.schema import RunConfig
from loradock.plan import Plan


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """An optimiser step ended. Emitted for each step, without reading anything back from the device."""

    step: int


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Metrics over the steps since the last such line.

    `loss` is the mean over supervised tokens, in nats; `tokens` are real ones (no padding), summed over all
    processes; `memory_bytes` is the peak that the allocator reserved on this process's card (0 on a CPU).
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


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Loss over every supervised token of the validation part, in nats; `perplexity` is its exponential."""

    step: int
    loss: float
    perplexity: float
    supervised_tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint was written."""

    step: int
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Dtypes:
    """The dtypes that really came out, once the first step was made: part -> dtype."""

    found: dict[str, str]


Event = StepDone | StepResult | EvalResult | Saved | Dtypes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How training ended. `best_step` is the checkpoint with the lowest evaluation loss, where one is kept."""

    steps: int
    ended: str
    seconds: float
    best_step: int | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that an engine needs. `steps` and `evaluation` come from `data.steps`, sharded for this process."""

    config: RunConfig
    plan: Plan
    model: Any
    tokenizer: Any
    steps: Any
    evaluation: Any | None
    directory: Path
    resume_from: Path | None
    world_size: int


Emit = Callable[[Event], None]


class Engine(Protocol):
    """A training loop."""

    name: str

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan and `emit` what happens.

        Raises Diverged at a non-finite loss, OutOfMemory when the card is full."""
        ...
