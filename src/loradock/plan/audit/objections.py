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


def objection(baseline: Context, after: Context) -> str | None:
    """The first reason against proposing `after`, or None."""
    return next((why for look in OBJECTIONS if (why := look(baseline, after)) is not None), None)


def _unknown_rates(_: Context, after: Context) -> str | None:
    if has_rates(after):
        return None
    return (
        "many CPUs have no 16-bit instructions, and are several times slower with it then; `loradock diagnose` measures"
    )


def _more_workers_than_planned(baseline: Context, after: Context) -> str | None:
    """The plan's own reason, where it would take fewer workers by itself."""
    was, now = (each.plan.dataloader.value.workers for each in (baseline, after))
    free = changed_config(baseline.config, ["train.workers=auto"])
    planned = dataloader.decide(context_of(baseline.plan, free, facts=baseline.facts))
    return planned.why if now > was and now > planned.value.workers else None


def _too_long_unsaved(baseline: Context, after: Context) -> str | None:
    was, now = (each.plan.cadence.value.save for each in (baseline, after))
    seconds = now * predicted(after).step
    if now <= was or seconds <= LONGEST_UNSAVED_SECONDS:
        return None
    return f"an interrupted run would repeat up to {seconds / 60:.0f} min"


OBJECTIONS: tuple[Objection, ...] = (_unknown_rates, _more_workers_than_planned, _too_long_unsaved)
