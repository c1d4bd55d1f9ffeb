"""The reference engine: TRL's SFTTrainer, fed with our optimiser steps."""

from __future__ import annotations

from loradock.engine import attempts
from loradock.engine.base import Emit, Job, Outcome
from loradock.engine.trl.trainer import StepTrainer
from loradock.engine.trl.zero import stage_of
from loradock.engine.trl.zero_trainer import ZeroTrainer


class TrlEngine:
    """Trains with `StepTrainer`, or under DeepSpeed's ZeRO where the plan says so."""

    name = "trl"

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`."""
        return attempts.run(job, emit, ZeroTrainer if stage_of(job.plan) else StepTrainer)
