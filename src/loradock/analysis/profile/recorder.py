"""A view of a run that has torch's profiler record some of its steps, from one step's end to another's."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from loradock.analysis.profile import ranges
from loradock.plan.plan import Plan
from loradock.training.context import View
from loradock.training.events import Event, StepDone


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which steps count: after `warmup_steps` come some as they are, then those of the profiler, then some as they are.

    `first` .. `last` are recorded. The profiler is started two steps before, and its first step is thrown away, so that
    what starting costs is in none of them; `is_clean` says whether a step's metric line is free of all that.
    """

    warmup_steps: int
    steps: int

    @property
    def recorded(self) -> int:
        """How many steps the profiler records."""
        return max(2, self.steps // 4)

    @property
    def first(self) -> int:
        """The first recorded step, counted from 1."""
        return self.warmup_steps + (self.steps - self.recorded - 2) // 2 + 3

    @property
    def last(self) -> int:
        """The last recorded step."""
        return self.first + self.recorded - 1

    @property
    def total(self) -> int:
        """All steps of the run."""
        return self.warmup_steps + self.steps

    def is_clean(self, step: int) -> bool:
        """Whether the profiler had nothing to do with this step."""
        return step < self.first - 2 or step > self.last


class Recorder:
    """A `telling.View`; `profiler` holds what was recorded once the run is over. Notes continue to another view."""

    def __init__(self, window: Window, *, view: View) -> None:
        self.window = window
        self.view = view
        self.plan_made: Plan | None = None
        self.profiler: Any = None
        self.names = ExitStack()

    def note(self, text: str) -> None:
        """One line of text."""
        self.view.note(text)

    def stage(self, text: str) -> None:
        """A stage begins."""
        self.view.stage(text)

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows and tokens prepared so far."""
        self.view.prepared_rows(rows, tokens)

    def plan(self, plan: Plan) -> None:
        """The plan was made; it is kept."""
        self.plan_made = plan

    def event(self, event: Event) -> None:
        """Start, continue or stop where a step ends."""
        if not isinstance(event, StepDone):
            return
        if event.step == self.window.first - 2:
            self.start()
        elif self.window.first - 2 < event.step <= self.window.last:
            self.profiler.step()
            if event.step == self.window.last:
                self.names.close()

    def start(self) -> None:
        """Begin with a step that is thrown away: the first one pays for the profiler's own beginning."""
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self.profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=self.window.recorded, repeat=1),
        )
        if self.plan_made is not None:
            self.names.enter_context(ranges.named(self.plan_made.engine.value))
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # "events of other cycles are lost"
            self.profiler.start()

    def close(self) -> None:
        """Leave the engine as it was, also where the run ended early."""
        self.names.close()
        if self.profiler is not None:
            self.profiler.stop()
