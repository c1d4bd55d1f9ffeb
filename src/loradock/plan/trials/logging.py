"""Metric lines a tenth as often."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial

TIMES = 10


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """Ten times the steps between lines, at most one line a run."""
    now, steps = baseline.plan.value("cadence")["log"], baseline.plan.value("steps")
    wanted = min(TIMES * now, steps)
    if wanted <= now:
        return ()
    return (
        Trial(
            name="logging-x10",
            title=f"a metric line every {wanted} steps instead of every {now}",
            settings=(f"logging.every={wanted}",),
            cause="writing metrics too often",
            phase="logging",
        ),
    )
