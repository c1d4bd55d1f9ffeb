"""The learning rate over a run: warm-up, then cosine, linear or constant.

The first step already trains: step 1 of a warm-up of n has 1/n of the peak (schedules that begin at 0 spend a step on
nothing, and a run of one step with them trains nothing at all).
"""

from __future__ import annotations

import math
from typing import Any


def factor(step: int, *, total_steps: int, warmup: float, kind: str) -> float:
    """Share of the peak rate at `step` (from 0). `warmup` below 1 is a share of the steps, else steps.

    After warm-up cosine and linear fall towards 0, which they would reach one step after the last.
    """
    warmup_steps = min(total_steps, math.ceil(warmup * total_steps) if warmup < 1 else int(warmup))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return 0.5 * (1 + math.cos(math.pi * progress)) if kind == "cosine" else 1 - progress


def continue_at(scheduler: Any, step: int) -> None:
    """Set a torch LambdaLR that has just been made to `step`, and its optimiser's rates with it."""
    scheduler.last_epoch, scheduler._step_count = step, step + 1
    rates = [base * factor_at(step) for base, factor_at in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
