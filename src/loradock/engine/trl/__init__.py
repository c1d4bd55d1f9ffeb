"""The reference engine: TRL's SFTTrainer, fed with our optimiser steps."""

from __future__ import annotations

from loradock.engine import attempts
from loradock.engine.base import Emit, Job, Outcome
from loradock.engine.trl.trainer import StepTrainer


class TrlEngine:
    """Trains with `StepTrainer`."""

    name = "trl"

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`."""
        return attempts.run(job, emit, StepTrainer)
