"""Why a change that memory holds is still no finding: the plan has a reason against it, or no figure says what it does.

To add one: a function `(baseline, after) -> why | None`, and its line in `OBJECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable

from loradock.plan.audit.prediction import has_rates, predicted
from loradock.plan.changed import changed_config
from loradock.plan.context import Context
from loradock.plan.knobs import dataloader
from loradock.plan.planner import context_of

LONGEST_UNSAVED_SECONDS = 600
"""What a run that is cut off may have to repeat."""

Objection = Callable[[Context, Context], str | None]


def objection(baseline: Context, changed: Context) -> str | None:
    """The first reason against proposing `after`, or None."""
    return next((why for look in OBJECTIONS if (why := look(baseline, changed)) is not None), None)


def _unknown_rates(_: Context, changed: Context) -> str | None:
    if has_rates(changed):
        return None
    return (
        "many CPUs have no 16-bit instructions, and are several times slower with it then; `loradock diagnose` measures"
    )


def _more_workers_than_planned(baseline: Context, changed: Context) -> str | None:
    """The plan's own reason, where it would take fewer workers by itself."""
    was, workers = (context.plan.dataloader.value.workers for context in (baseline, changed))
    free = changed_config(baseline.config, ["train.workers=auto"])
    planned = dataloader.decide(context_of(baseline.plan, free, facts=baseline.facts))
    return planned.why if workers > was and workers > planned.value.workers else None


def _too_long_unsaved(baseline: Context, changed: Context) -> str | None:
    was, intervals = (context.plan.cadence.value.save for context in (baseline, changed))
    seconds = intervals * predicted(changed).step
    if intervals <= was or seconds <= LONGEST_UNSAVED_SECONDS:
        return None
    return f"an interrupted run would repeat up to {seconds / 60:.0f} min"


OBJECTIONS: tuple[Objection, ...] = (_unknown_rates, _more_workers_than_planned, _too_long_unsaved)
