"""The trials, in the order in which `diagnose` and `plan` show them. To add one: a new file, and its line here."""

from __future__ import annotations

from loradock.trials.base import Baseline, Propose, Trial

TRIALS: tuple[Propose, ...] = ()


def proposed(baseline: Baseline) -> tuple[Trial, ...]:
    """Every trial that makes sense for a baseline."""
    return tuple(trial for propose in TRIALS for trial in propose(baseline))
