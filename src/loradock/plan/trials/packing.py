"""Several documents in one row, where rows are padded."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """On, where it is off. With one row a pass there is no padding to spare, but passes are fewer."""
    if baseline.plan.value("packing"):
        return ()
    return (
        Trial(
            name="packing-on",
            title="documents packed end to end instead of padded",
            settings=("train.packing=true",),
            cause="padding: rows are filled up to the longest of their micro-batch",
            phase="passes",
        ),
    )
