"""Seconds of a step by phase, from metric lines."""

from __future__ import annotations

from typing import Any

import pytest

from loradock.analysis import step_time

CADENCE = {"log": 2, "evaluate": 10, "save": 5}


def line(step: int, *, steps: int = 2, seconds: float = 2.0, **phases: float) -> dict[str, Any]:
    return {
        "step": step,
        "tokens": 100 * steps,
        "samples_per_second": 4 * steps / seconds,
        "seconds": seconds,
        "phases": {"data": 0.4, "passes": 1.0, "optimizer": 0.2, **phases},
    }


def of(train: list[dict[str, Any]], *, warmup_steps: int = 0) -> step_time.Breakdown | None:
    return step_time.of(
        train,
        evaluations=[{"seconds": 3.0}, {"seconds": 5.0}],
        checkpoints=[{"seconds": 1.0}],
        cadence=CADENCE,
        warmup_steps=warmup_steps,
    )


def test_a_step_is_the_sum_of_its_phases_and_what_is_between_counts_by_its_cadence() -> None:
    found = of(
        [line(1, steps=1, seconds=50.0), line(2, steps=1), line(4, logging=0.1), line(6, logging=0.3)], warmup_steps=2
    )
    assert found is not None
    assert found.steps == 4
    assert found.phases == pytest.approx(
        {"data": 0.2, "passes": 0.5, "optimizer": 0.1, "other": 0.2, "logging": 0.1, "evaluation": 0.4, "saving": 0.2}
    )
    assert found.seconds == pytest.approx(1.7)
    assert found.share("evaluation") == pytest.approx(0.4 / 1.7)
    assert found.tokens_per_second == pytest.approx(100 / 1.7)
    assert found.samples_per_second == pytest.approx(4 / 1.7)


def test_a_run_that_continues_is_counted_from_its_first_line() -> None:
    found = of([line(21, steps=1, seconds=1.0), line(22, steps=1, seconds=1.0)])
    assert found is not None
    assert found.steps == 2


def test_warm_up_leaves_nothing_of_a_short_run() -> None:
    assert of([line(1, steps=1), line(2, steps=1)], warmup_steps=5) is None
    assert of([]) is None


def test_a_run_without_evaluations_has_a_cadence_of_none() -> None:
    found = step_time.of(
        [line(1, steps=1), line(2, steps=1)],
        evaluations=[],
        checkpoints=[],
        cadence={**CADENCE, "evaluate": 0},
        warmup_steps=0,
    )
    assert found is not None
    assert found.phases["evaluation"] == 0
