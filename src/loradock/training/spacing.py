"""How many steps lie between evaluations and saves: as planned at first, then by the seconds that one of each takes.

Together they are to cost SHARE of the time at most, beside the last of each. No bit of what is trained depends on when
one is held, but for evaluations that judge (the best checkpoint, early stopping): those stay where the plan has them.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Literal

from loradock.distributed import collectives
from loradock.plan.plan import Cadence, Decision
from loradock.text.amounts import duration_text, percent
from loradock.training.job import Job

SHARE = 0.05
LONGEST_SECONDS = 900.0
"""Between two saves, where that costs no more: what a kill may undo."""
MORE, LESS = 1.25, 0.5
"""Of an interval: what is nearer than that to it is the noise of a clock."""
LITTLE_SECONDS = 2.0
"""What all of a kind may cost, whatever their share: a short run keeps its plan."""
Kind = Literal["evaluate", "save"]
TAKES: dict[Kind, str] = {"evaluate": "an evaluation takes", "save": "a save stops the steps for"}
STAYS: dict[Kind, str] = {"evaluate": "evaluations", "save": "saves"}


class Spacing:
    """The cadence of one attempt. Every process measures and decides, and all decide alike."""

    def __init__(self, job: Job) -> None:
        config, planned = job.config, job.plan.cadence.value
        self.planned = self.cadence = planned
        self.steps = len(job.steps)
        judges = config.keeps_best or config.train.early_stopping is not None
        self.free: dict[Kind, bool] = {
            "evaluate": config.evaluation.every == "auto" and planned.evaluate > 0 and not judges,
            "save": config.checkpoints.every == "auto" and config.checkpoints.keep_best is not True,
        }
        self.kinds: set[Kind] = {kind for kind in self.free if 0 < vars(planned)[kind] < self.steps}
        self.seconds: dict[Kind, float] = {}
        self.counted, self.since, self.other_seconds = -1, 0.0, 0.0
        self.is_told = False

    def step(self) -> None:
        """A step was made. The first one of an attempt is not counted: it compiles and warms up."""
        self.counted += 1
        if not self.counted:
            self.since = time.monotonic()

    def measured(self, kind: Kind, seconds: float) -> Decision[Cadence] | None:
        """One was held, in so many seconds of this process; returns the cadence from here on, where there is news.

        All processes call it together, and the slowest one counts.
        """
        self.seconds[kind] = max(collectives.all_of(seconds))
        if self.counted > 0:
            self.other_seconds += seconds
        if self.counted < 1 or not any(self.free[kind] for kind in self.kinds):
            return None
        passed_seconds = time.monotonic() - self.since - self.other_seconds
        step_seconds = max(1e-6, max(collectives.all_of(passed_seconds)) / self.counted)
        cadence = self._of(step_seconds)
        if cadence == self.cadence and (self.is_told or self.kinds - self.seconds.keys()):
            return None
        self.cadence, self.is_told = cadence, True
        return Decision(name="cadence", value=cadence, why=self._why(step_seconds))

    def _of(self, step_seconds: float) -> Cadence:
        shares = {kind: seconds / step_seconds / vars(self.cadence)[kind] for kind, seconds in self.seconds.items()}
        intervals: dict[str, Any] = {}
        for kind, seconds in self.seconds.items():
            if not self.free[kind]:
                continue
            current, steps = vars(self.cadence)[kind], vars(self.planned)[kind]
            if kind == "save":
                steps = max(1, min(steps, int(LONGEST_SECONDS / step_seconds)))
            allowed = max(SHARE / 2, SHARE - sum(share for other, share in shares.items() if other != kind))
            least = math.ceil(seconds / step_seconds / allowed)
            is_little = seconds * self.steps / steps <= LITTLE_SECONDS
            steps = min(self.steps, -(-least // steps) * steps if least > steps and not is_little else steps)
            if steps >= MORE * current or steps <= LESS * current:
                intervals[kind] = steps
        return replace(self.cadence, **intervals)

    def _why(self, step_seconds: float) -> str:
        costs = [f"{TAKES[kind]} {duration_text(seconds)}" for kind, seconds in self.seconds.items()]
        share = sum(seconds / vars(self.cadence)[kind] for kind, seconds in self.seconds.items()) / step_seconds
        limit = f"{percent(SHARE)} at most"
        if share > SHARE and all(self.free[kind] for kind in self.seconds):
            limit = f"{duration_text(share * step_seconds * self.steps)} of the run"
        why = f"{', '.join(costs)}, a step {duration_text(step_seconds)}: {percent(share, digits=1)} of the time"
        staying = [STAYS[kind] for kind in self.free if kind in self.kinds and not self.free[kind]]
        return f"{why}, {limit}" + (f"; {staying[0]} stay as they are" if staying else "")
