"""Steps and cadence: how long a run is, and how often it stops to measure, evaluate and save."""

from __future__ import annotations

import math

import pytest
from facts.recorded import config, data, decision, machine, planned

from loradock.plan.plan import Cadence

GPU = machine("h200")


@pytest.mark.parametrize(
    ("rows", "global_batch", "epochs", "steps"),
    [
        (160, 16, 1.0, 10),
        (161, 16, 1.0, 11),
        (800, 16, 1.1, 55),
        (160, 16, 0.3, 3),
        (48, 16, 0.1, 1),
        (30 * 16, 16, 0.7, 21),
        (160, 16, 0.25, 3),
        (3, 16, 1.0, 1),
        (160, 16, 3.0, 30),
    ],
)
def test_steps_follow_from_epochs_rounded_up_but_not_by_a_binary_fraction(
    rows: int, global_batch: int, epochs: float, steps: int
) -> None:
    asked = config(train={"global_batch": global_batch, "epochs": epochs})
    found = decision(planned(facts=GPU, data=data(rows=rows), config=asked), "steps")
    assert found.value == steps
    assert f"{rows} samples" in found.why


def test_max_steps_overrides_epochs_and_says_what_an_epoch_would_be() -> None:
    asked = config(train={"max_steps": 7, "epochs": 3.0})
    found = decision(planned(facts=GPU, data=data(rows=161), config=asked), "steps")
    assert found.value == 7
    assert "161 samples is 11 steps" in found.why


@pytest.mark.parametrize("rows", [16, 200, 5_000, 50_000, 1_000_000])
@pytest.mark.parametrize("held_out", [1, 50, 2_000, 100_000])
def test_evaluations_cost_at_most_a_tenth_of_the_training_between_them(rows: int, held_out: int) -> None:
    plan = planned(facts=GPU, data=data(rows=rows, held_out=held_out))
    cadence, steps = plan.cadence.value, plan.steps.value
    assert 1 <= cadence.evaluate <= steps
    if cadence.evaluate < steps:
        trained = cadence.evaluate * 16
        assert held_out / 3 <= 0.1 * trained
    assert str(held_out) in decision(plan, "cadence").why


@pytest.mark.parametrize("steps", [1, 2, 9, 60, 1_000, 2_500, 100_000])
def test_checkpoints_are_few_and_never_far_apart(steps: int) -> None:
    cadence = planned(facts=GPU, config=config(train={"max_steps": steps})).cadence.value
    assert 1 <= cadence.save <= 500
    assert math.ceil(steps / cadence.save) <= max(5, math.ceil(steps / 500))


def test_a_short_run_logs_every_step_and_a_long_one_every_tenth() -> None:
    found = {
        steps: planned(facts=GPU, config=config(train={"max_steps": steps})).cadence.value.log
        for steps in (5, 199, 500, 100_000)
    }
    assert found == {5: 1, 199: 1, 500: 5, 100_000: 10}


def test_without_a_held_out_part_nothing_is_evaluated_and_the_reason_says_so() -> None:
    found = decision(planned(facts=GPU), "cadence")
    assert found.value.evaluate == 0
    assert "no validation rows" in found.why


def test_an_asked_cadence_is_kept() -> None:
    asked = config(logging={"every": 3}, evaluation={"every": 4}, checkpoints={"every": 5})
    cadence = planned(facts=GPU, data=data(held_out=100), config=asked).cadence.value
    assert cadence == Cadence(log=3, evaluate=4, save=5)


def test_keeping_the_best_saves_at_every_evaluation() -> None:
    asked = config(checkpoints={"keep_best": True}, evaluation={"every": 7})
    cadence = planned(facts=GPU, data=data(held_out=100), config=asked).cadence.value
    assert cadence.save == cadence.evaluate == 7
