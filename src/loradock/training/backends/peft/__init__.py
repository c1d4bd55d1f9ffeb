"""The reference engine: TRL's SFTTrainer, fed with our optimiser steps."""

from __future__ import annotations

from loradock.plan.memory.sharded import CUTS_WEIGHTS
from loradock.training import packing_check, recovery
from loradock.training.backends.trl.trainer import StepTrainer
from loradock.training.backends.trl.zero import stage_of
from loradock.training.backends.trl.zero_trainer import ZeroTrainer
from loradock.training.job import Emit, Job, Outcome


class TrlEngine:
    """Trains with `StepTrainer`, or under DeepSpeed's ZeRO where the plan says so."""

    name = "trl"

    def prepare(self, job: Job) -> tuple[str, ...]:
        """See that packed documents do not see one another; the trainer does where the weights are cut up."""
        if not job.plan.packing.value or job.plan.parallel.value in CUTS_WEIGHTS:
            return ()
        change = packing_check.of_job(job)
        return (f"packing: documents do not see one another (logits move by {change:.1e} of the largest)",)

    def run(self, job: Job, emit: Emit) -> Outcome:
        """Train to the end of the plan; see `engine.base.Engine`."""
        return recovery.run(job, emit, ZeroTrainer if stage_of(job.plan) else StepTrainer)
