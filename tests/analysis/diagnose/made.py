"""Made measurements and trials, for tests that run nothing."""

from __future__ import annotations

from typing import Any

from loradock.analysis.diagnose.measure import Measured
from loradock.plan.trial import Trial

STEP = {
    "data": 0.01,
    "passes": 0.9,
    "optimizer": 0.02,
    "other": 0.01,
    "logging": 0.02,
    "evaluation": 0.02,
    "saving": 0.02,
}


def measured(*, times: float = 1.0, phases: dict[str, float] | None = None, **others: Any) -> Measured:
    """A step of one second that trains 1000 tokens, all of it `times` as long."""
    spent = {**STEP, **(phases or {})}
    values: dict[str, Any] = {
        "phases": {name: seconds * times for name, seconds in spent.items()},
        "tokens": 1000.0,
        "samples": 10.0,
        "steps": 20,
        "event_seconds": {"evaluation": 0.2, "saving": 0.2},
        "memory_bytes": 1 << 30,
        "padding_share": 0.0,
        "loss": 2.0,
        "total_steps": 1000,
        "lost_tokens": 0,
        "all_tokens": 100_000,
        "cut_rows": 0,
        "device": "cpu",
        "engine": "fast",
        "micro_batch": 4,
    }
    return Measured(**{**values, **others})


def trial(name: str, *settings: str, **others: Any) -> Trial:
    """A trial of the passes that gives nothing up."""
    values: dict[str, Any] = {"title": name, "cause": f"no {name}", "phase": "passes"}
    return Trial(name=name, settings=settings or (f"train.seed={len(name)}",), **{**values, **others})
