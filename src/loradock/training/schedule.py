"""The learning rate over a run: warm-up, then the schedule that the catalog has by that name.

The first step already trains: step 1 of a warm-up of n has 1/n of the peak (schedules that begin at 0 spend a step on
nothing, and a run of one step with them trains nothing at all).
"""

from __future__ import annotations

from typing import Any

from loradock.catalog.schedules import SCHEDULES, Position, as_steps
from loradock.config.sections.train import TrainConfig


def factor(step: int, *, total_steps: int, train: TrainConfig) -> float:
    """Share of the peak rate at `step` (from 0).

    Those that fall come to their floor one step after the last.
    """
    warmup_steps = as_steps(train.warmup, of_steps=total_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    schedule = SCHEDULES[train.schedule]
    position = Position(step=step, warmup_steps=warmup_steps, total_steps=total_steps)
    return schedule.factor(position, schedule.settings(train))


def continue_at(scheduler: Any, step: int) -> None:
    """Set a torch LambdaLR that has just been made to `step`, and its optimiser's rates with it."""
    scheduler.last_epoch, scheduler._step_count = step, step + 1
    rates = [base * factor_at(step) for base, factor_at in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
