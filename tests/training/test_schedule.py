"""The learning rate over a run."""

from __future__ import annotations

import pytest

from loradock.training.schedule import factor


def rates(total_steps: int, warmup: float, kind: str) -> list[float]:
    return [factor(step, total_steps=total_steps, warmup=warmup, kind=kind) for step in range(total_steps)]


def test_a_run_of_one_step_trains_at_the_peak() -> None:
    assert rates(1, 0.03, "cosine") == [1.0]
    assert rates(1, 100, "linear") == [1.0]


def test_warm_up_rises_evenly_from_its_first_step() -> None:
    assert rates(10, 4, "constant") == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]
    assert rates(100, 0.03, "constant")[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_cosine_and_linear_fall_from_the_peak_and_still_train_at_the_last_step() -> None:
    assert rates(4, 0, "linear") == [1, 0.75, 0.5, 0.25]
    assert rates(4, 0, "cosine") == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert 0 < rates(1000, 0.1, "cosine")[-1] < 1e-5
