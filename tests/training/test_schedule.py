"""The learning rate over a run: each schedule against transformers' own, and torch's where it has one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
import transformers.optimization as reference
import yaml
from click.testing import CliRunner

from loradock.catalog.schedules import OWN_KEYS, SCHEDULES
from loradock.commands.config import config
from loradock.config.sections.train import TrainConfig
from loradock.training.schedule import factor

STEPS, WARMUP, PEAK, FLOOR = 50, 7, 2e-4, 0.1
FALL = {"num_warmup_steps": WARMUP, "num_training_steps": STEPS}
OF_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cosine": ("get_cosine_schedule_with_warmup", FALL, {}),
    "cosine with a floor": (
        "get_cosine_with_min_lr_schedule_with_warmup",
        FALL | {"min_lr_rate": FLOOR},
        {"min_learning_rate_ratio": FLOOR},
    ),
    "linear": ("get_linear_schedule_with_warmup", FALL, {}),
    "constant": ("get_constant_schedule_with_warmup", {"num_warmup_steps": WARMUP}, {}),
    "cosine_with_restarts": (
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        FALL | {"num_cycles": 3},
        {"cycles": 3},
    ),
    "polynomial": (
        "get_polynomial_decay_schedule_with_warmup",
        FALL | {"power": 2.5, "lr_end": PEAK * FLOOR},
        {"power": 2.5, "min_learning_rate_ratio": FLOOR},
    ),
    "inverse_sqrt": ("get_inverse_sqrt_schedule", {"num_warmup_steps": WARMUP}, {}),
    "wsd": (
        "get_wsd_schedule",
        FALL | {"num_decay_steps": 20, "min_lr_ratio": FLOOR},
        {"decay": 20, "min_learning_rate_ratio": FLOOR},
    ),
    "wsd by a line": (
        "get_wsd_schedule",
        FALL | {"num_decay_steps": 20, "decay_type": "linear"},
        {"decay": 0.4, "decay_shape": "linear"},
    ),
    "wsd by 1-sqrt": (
        "get_wsd_schedule",
        FALL | {"num_decay_steps": 20, "decay_type": "1-sqrt"},
        {"decay": 20, "decay_shape": "1-sqrt"},
    ),
}
"""Case -> transformers' function and its arguments, and our keys; a case begins with the schedule's name."""


def rates(total_steps: int, **settings: Any) -> list[float]:
    train = TrainConfig(**settings)
    return [factor(step, total_steps=total_steps, train=train) for step in range(total_steps)]


def stepped(made: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]) -> list[float]:
    """The rates of 50 steps that a scheduler of torch's kind gives."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler, seen = made(optimizer), []
    for _ in range(STEPS):
        seen.append(scheduler.get_last_lr()[0] / PEAK)
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize("case", OF_TRANSFORMERS)
def test_each_schedule_is_transformers_own_over_50_steps_whose_warm_up_ours_is_a_step_ahead_of(case: str) -> None:
    function, arguments, settings = OF_TRANSFORMERS[case]
    ours = rates(STEPS, schedule=case.split(" ")[0], warmup=WARMUP, **settings)
    theirs = stepped(lambda optimizer: getattr(reference, function)(optimizer, **arguments))
    assert ours[WARMUP:] == pytest.approx(theirs[WARMUP:], rel=1e-9, abs=1e-12)
    if "min_lr_ratio" not in arguments:  # then transformers' warm-up begins at the floor
        assert ours[: WARMUP - 1] == pytest.approx(theirs[1:WARMUP], rel=1e-9)


def test_every_schedule_of_the_table_has_a_reference_and_the_configuration_takes_its_word() -> None:
    assert {case.split(" ")[0] for case in OF_TRANSFORMERS} == set(SCHEDULES)
    assert get_args(TrainConfig.model_fields["schedule"].annotation) == tuple(SCHEDULES)


def test_those_that_torch_has_are_torch_s() -> None:
    schedulers = torch.optim.lr_scheduler
    cosine = stepped(lambda made: schedulers.CosineAnnealingLR(made, T_max=STEPS, eta_min=PEAK * FLOOR))
    assert rates(STEPS, warmup=0, min_learning_rate_ratio=FLOOR) == pytest.approx(cosine, rel=1e-9)
    polynomial = stepped(lambda made: schedulers.PolynomialLR(made, total_iters=STEPS, power=2.0))
    assert rates(STEPS, warmup=0, schedule="polynomial", power=2) == pytest.approx(polynomial, rel=1e-9)


def test_a_run_of_one_step_trains_at_the_peak() -> None:
    for name in SCHEDULES:
        assert rates(1, schedule=name) == [1.0]
        assert rates(1, schedule=name, warmup=100) == [1.0]


def test_warm_up_rises_evenly_from_its_first_step() -> None:
    assert rates(10, warmup=4, schedule="constant") == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]
    assert rates(100, warmup=0.03, schedule="constant")[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_cosine_and_linear_fall_from_the_peak_and_still_train_at_the_last_step() -> None:
    assert rates(4, warmup=0, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert rates(4, warmup=0, schedule="cosine") == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert 0 < rates(1000, warmup=0.1, schedule="cosine")[-1] < 1e-5


def test_a_decay_that_is_longer_than_what_warm_up_leaves_falls_from_its_end() -> None:
    shares = rates(10, schedule="wsd", warmup=4, decay=9, decay_shape="linear")
    assert shares[4:] == pytest.approx([1 - step / 6 for step in range(6)])
    assert all(math.isfinite(share) for share in shares)


@pytest.mark.parametrize("key", OWN_KEYS)
def test_a_key_that_the_schedule_does_not_read_is_told(key: str) -> None:
    value = {"decay_shape": "linear"}.get(key, 0.5 if key == "min_learning_rate_ratio" else 2)
    for schedule, known in SCHEDULES.items():
        settings = ("--model", ".", "--data", "rows.jsonl", "--set", f"train.{key}={value}")
        shown = CliRunner().invoke(config, ["show", *settings, "--set", f"train.schedule={schedule}"])
        assert shown.exit_code == 0, shown.output
        assert yaml.safe_load(shown.stdout)["train"][key] == value
        is_told = f"train.{key} has no effect: it belongs to train.schedule" in shown.stderr
        assert is_told == (key not in known.keys), schedule
