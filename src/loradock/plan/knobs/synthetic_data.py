"""No loading at all: every step trains on the first one's rows, which shows what loading costs."""

from __future__ import annotations

from loradock.plan.context import Context
from loradock.plan.trial import Trial


def propose(context: Context) -> tuple[Trial, ...]:
    """Always, unless it is on: the one sure way to tell whether the loader is the bottleneck. No remedy."""
    if context.config.data.repeat_first:
        return ()
    return (
        Trial(
            name="synthetic-data",
            title="the first step's rows repeated, without the data loader",
            settings=("data.repeat_first=true",),
            cause="waiting for data",
            phase="data",
            price="only the first step's rows are learned",
            is_remedy=False,
            accuracy_risk="high",
        ),
    )
