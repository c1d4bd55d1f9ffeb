"""The micro-batch: what the plan would take where a person chose, twice and half as large."""

from __future__ import annotations

from loradock.errors import OutOfMemory
from loradock.plan import plan as plans
from loradock.plan.trials.base import Baseline, Trial
from loradock.plan.trials.changed import changed_config

TOO_SMALL = "the micro-batch is too small: what is paid for each pass is paid too often"
TOO_LARGE = "the micro-batch is too large for the memory: what it takes is missing elsewhere"
PADDED = "the micro-batch is large: more rows are padded to its longest"


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """Larger only where a step takes several passes: else there is nothing left to put into one."""
    config, plan = baseline.config, baseline.plan
    now = plan.value("micro_batch")
    larger = min(2 * now, config.train.global_batch)
    trials: list[Trial] = []
    planned = _planned(baseline)
    if planned is not None:
        trials.append(_trial(baseline, "micro-batch-auto", planned, setting="auto"))
    if plan.value("accumulation") > 1 and larger > now:
        trials.append(_trial(baseline, "micro-batch-x2", larger))
    if now > 1:
        trials.append(_trial(baseline, "micro-batch-x0.5", now // 2))
    return tuple(trials)


def _trial(baseline: Baseline, name: str, wanted: int, *, setting: str | None = None) -> Trial:
    now = baseline.plan.value("micro_batch")
    smaller = TOO_LARGE if baseline.plan.value("packing") else PADDED
    return Trial(
        name=name,
        title=f"micro-batch {wanted} instead of {now}" + (", as planned" if setting else ""),
        settings=(f"train.micro_batch={setting or wanted}",),
        cause=TOO_SMALL if wanted > now else smaller,
        phase="passes",
        stability_risk="low" if wanted > now and not setting else "none",
    )


def _planned(baseline: Baseline) -> int | None:
    """What the plan would take; None where it did, or nothing fits."""
    if baseline.config.train.micro_batch == "auto":
        return None
    free = changed_config(baseline.config, ["train.micro_batch=auto"])
    try:
        plan = plans.make(free, facts=baseline.facts, model=baseline.plan.model, data=baseline.plan.data)
    except OutOfMemory:
        return None
    return plan.value("micro_batch")
