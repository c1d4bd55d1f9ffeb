"""Checkpoints a tenth as often."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial

TIMES = 10
FEWEST = 10
"""Checkpoints of a run, whatever they cost."""


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """Ten times the steps between checkpoints, while a run has ten: one that is cut off loses more otherwise."""
    now, steps = baseline.plan.value("cadence")["save"], baseline.plan.value("steps")
    wanted = min(TIMES * now, steps // FEWEST)
    if wanted <= now:
        return ()
    return (
        Trial(
            name="checkpoints-x10",
            title=f"a checkpoint every {wanted} steps instead of every {now}",
            settings=(f"checkpoints.every={wanted}",),
            cause="saving checkpoints too often",
            phase="saving",
            stability_risk="low",
        ),
    )
