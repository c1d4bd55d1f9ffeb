"""Evaluations a tenth as often."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial

TIMES = 10


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """Ten times the steps between evaluations, where there are any and more than one."""
    config = baseline.config
    now, steps = baseline.plan.value("cadence")["evaluate"], baseline.plan.value("steps")
    wanted = min(TIMES * now, steps)
    if wanted <= now:
        return ()
    is_judge = config.checkpoints.keep_best or config.train.early_stopping is not None
    return (
        Trial(
            name="evaluation-x10",
            title=f"an evaluation every {wanted} steps instead of every {now}",
            settings=(f"evaluation.every={wanted}",),
            cause="evaluating too often",
            phase="evaluation",
            price="the best checkpoint, or the stop, is looked for less often" if is_judge else "",
            accuracy_risk="low" if is_judge else "none",
        ),
    )
