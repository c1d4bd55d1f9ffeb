"""Counts what went through training since the last metric line, and where its time went.

Host numbers only: nothing is read from the device. A step reads its loss back once, after its last pass, so the time of
the passes is the device's; only the optimiser's kernels are waited for in the next step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from loradock.distributed import collectives
from loradock.training.events import StepResult
from loradock.training.job import Job

DATA, PASSES, OPTIMIZER, LOGGING = "data", "passes", "optimizer", "logging"
"""Phases of a step: waiting for its data; forward and backward; the update; writing a metric line."""


@dataclass(frozen=True)
class WholeSteps:
    """What was spent up to the end of the last step: the time on the clock, `Meter.paused_seconds` and its phases."""

    until: float
    paused_seconds: float
    phases: dict[str, float]


@dataclass
class Meter:
    """Steps, real and supervised tokens, samples, padded slots (`idle`: of passes without work), and their seconds."""

    steps: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    samples: int = 0
    slots: int = 0
    idle: int = 0
    paused_seconds: float = 0.0
    since: float = field(default_factory=time.monotonic)
    until: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    whole_steps: WholeSteps | None = None

    @classmethod
    def after_line(cls, began: float) -> Meter:
        """The next one, after a line that was begun to be written at `began`."""
        return cls(phases={LOGGING: time.monotonic() - began})

    @contextmanager
    def spent(self, phase: str) -> Iterator[None]:
        """Time inside belongs to this phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add_spent(phase, since=began)

    def add_spent(self, phase: str, *, since: float) -> None:
        """Time since then belongs to this phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + time.monotonic() - since

    def add(self, *, tokens: int, supervised_tokens: int, samples: int, slots: int, idle: int = 0) -> None:
        """Count one optimiser step: over all processes, but `slots` (tokens with padding) and `idle` of this one."""
        self.steps += 1
        self.tokens += tokens
        self.supervised_tokens += supervised_tokens
        self.samples += samples
        self.slots += slots
        self.idle += idle
        self.whole_steps = WholeSteps(time.monotonic(), self.paused_seconds, dict(self.phases))

    def leave_out_dropped(self) -> None:
        """Leave out what was spent since the last step ended: on a step, or an evaluation, that a signal dropped."""
        if whole := self.whole_steps:
            self.until, self.paused_seconds, self.phases = whole.until, whole.paused_seconds, whole.phases

    def pause(self, seconds: float) -> None:
        """Leave out time that was not training (evaluation, saving)."""
        self.paused_seconds += seconds

    @property
    def seconds(self) -> float:
        """Seconds of training since the count began."""
        return max(1e-9, (self.until or time.monotonic()) - self.since - self.paused_seconds)

    @property
    def used_slots(self) -> int:
        """This process's slots, without those of idle passes, which are no padding."""
        return self.slots - self.idle

    def padding_share(self, used_slots: float) -> float:
        """Share of the slots, those of all processes together, that held padding."""
        return max(0.0, 1 - self.tokens / used_slots) if used_slots else 0.0

    def own_seconds(self, passes_seconds: float) -> float:
        """Of a step, this process's own part, as if all had as many tokens in their passes, which took so long."""
        slots = collectives.all_of(self.slots)
        even = sum(slots) / len(slots) / max(1, self.slots)
        return (self.phases.get(DATA, 0.0) + passes_seconds * even) / self.steps

    def line(
        self,
        job: Job,
        step: int,
        *,
        loss: float,
        parts: dict[str, float],
        learning_rate: float,
        grad_norm: float,
        passes_seconds: float | None,
        experts: dict[str, float],
    ) -> StepResult:
        """The metric line of all that was counted; all processes call it together.

        `passes_seconds`: this process's passes without waiting for the others, None where that is not known.
        `experts`: the load of a mixture's, by name.
        """
        own_seconds = None if passes_seconds is None else self.own_seconds(passes_seconds)
        return StepResult(
            step=step,
            steps=self.steps,
            epoch=step / job.steps.steps_per_epoch,
            loss=loss,
            parts=parts,
            experts=experts,
            learning_rate=learning_rate,
            grad_norm=grad_norm,
            tokens=self.tokens,
            supervised_tokens=self.supervised_tokens,
            padding_share=self.padding_share(sum(collectives.all_of(self.used_slots))),
            tokens_per_second=self.tokens / self.seconds,
            samples_per_second=self.samples / self.seconds,
            seconds=self.seconds,
            steps_per_second=self.steps / self.seconds,
            epoch_seconds=job.steps.steps_per_epoch * self.seconds / self.steps,
            memory_bytes=torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0,
            phases=dict(self.phases),
            rank_seconds=None if own_seconds is None else collectives.by_name(own_seconds, job.peers),
        )
