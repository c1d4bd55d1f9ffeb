"""When to log, evaluate, save and stop, and what the evaluations say: the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass

from loradock.distributed import collectives
from loradock.process import signals
from loradock.training.checkpoint.store import Checkpoint
from loradock.training.events import EARLY_STOP
from loradock.training.job import Job
from loradock.training.saving import Progress
from loradock.training.spacing import Spacing


@dataclass(frozen=True, kw_only=True)
class Due:
    """What belongs to a step that has ended, in this order."""

    log: bool
    evaluate: bool
    save: bool


class Flow:
    """The cadence of `spacing`, always at the last step, and after a signal; the best evaluation, and the early stop.

    `ended` says why there is nothing left to train, `stopped_by` which signal asks to end; None where there is none.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.spacing = Spacing(job)
        self.ended: str | None = None
        self.stopped_by: str | None = None
        self.evaluated_step = 0
        self.best_loss: float | None = None
        self.best_step: int | None = None

    def resume(self, checkpoint: Checkpoint, *, has_best: bool) -> bool:
        """Take up where the checkpoint stood; returns True where it still owes its evaluation.

        `has_best`: the best checkpoint that it names is there. One that was to be kept and is gone counts no more.
        """
        progress = Progress.of(checkpoint)
        self.evaluated_step = progress.evaluated_step
        if has_best or not self.job.config.keeps_best:
            self.best_loss, self.best_step = progress.best_loss, progress.best_step
        if checkpoint.fingerprint == self.job.checkpoints.fingerprint:  # else what ended it may have changed
            self.ended = progress.ended
        if progress.step >= len(self.job.steps):
            self.ended = self.ended or "last step"
        return self.is_evaluated(progress.step) and progress.evaluated_step < progress.step

    def is_evaluated(self, step: int) -> bool:
        """True where an evaluation belongs to this step."""
        if self.job.evaluation is None or not step:
            return False
        return step >= len(self.job.steps) or step % self.spacing.cadence.evaluate == 0

    def is_ending(self, step: int) -> bool:
        """True where no step comes after this one."""
        return step >= len(self.job.steps) or step == self.job.stop_after or bool(self.stopped_by or self.ended)

    def after(self, step: int) -> Due:
        """What is due after a step. After a signal an evaluation waits for the run that continues."""
        self.spacing.step()
        if self.job.peers:
            self.job.peers.step = step
        if collectives.any_of(bool(signals.requested())):
            self.stopped_by = signals.requested() or "another rank of the run"
        saves = self.is_ending(step) or step % self.spacing.cadence.save == 0
        return Due(
            # A metric line never reaches over a checkpoint: a run that continues from it gives the same lines.
            log=saves or step == 1 or step % self.spacing.cadence.log == 0,
            evaluate=not self.stopped_by and self.is_evaluated(step),
            save=saves,
        )

    def judge(self, step: int, loss: float) -> bool:
        """Note an evaluation by what it is judged by, the lower the better (`loss`); True where its checkpoint is kept.

        How many evaluations ago the best one was follows from the steps.
        """
        self.evaluated_step = step
        is_best = self.best_loss is None or loss < self.best_loss
        if is_best:
            self.best_loss, self.best_step = loss, step
        patience = self.job.config.train.early_stopping
        if patience and step - (self.best_step or 0) >= patience * self.spacing.cadence.evaluate:
            self.ended = EARLY_STOP
        return bool(self.ended) or (is_best and self.job.config.keeps_best)

    def progress(self, step: int) -> Progress:
        """Where the run stands, for the manifest."""
        return Progress(
            step=step,
            evaluated_step=self.evaluated_step,
            best_loss=self.best_loss,
            best_step=self.best_step,
            ended=self.ended,
            decided=self.job.plan.held(),
        )
