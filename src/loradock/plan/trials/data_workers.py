"""Processes that load the data: none, and more."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial

FEWEST = 2


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """None where there are some; twice as many, at least two, where the machine has the cores."""
    facts, now = baseline.facts, baseline.plan.value("dataloader")["workers"]
    more = min(max(FEWEST, 2 * now), facts.cpus // facts.processes_here)
    trials = (
        [_trial("data-workers-more", now, more, cause="the loader is too slow for the steps")] if more > now else []
    )
    if now:
        trials.append(_trial("data-workers-0", now, 0, cause="handing data over from loader processes"))
    return tuple(trials)


def _trial(name: str, now: int, wanted: int, *, cause: str) -> Trial:
    return Trial(
        name=name,
        title=f"{wanted} data workers instead of {now}",
        settings=(f"train.workers={wanted}",),
        cause=cause,
        phase="data",
    )
