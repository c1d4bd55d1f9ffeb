"""The table of optimisers: whole, and of the words that the configuration takes."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from loradock.catalog import optimizers
from loradock.catalog.optimizers import OPTIMIZERS
from loradock.config.schema import RunConfig
from loradock.config.sections.train import TrainConfig
from loradock.env_check.compute import optimizer as check
from loradock.env_check.compute.places import Device


def test_the_words_of_the_configuration_are_the_table_s() -> None:
    assert get_args(TrainConfig.model_fields["optimizer"].annotation) == ("auto", *OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_sets_hyperparameters_that_a_configuration_has_and_is_replaced_by_another_of_its_devices(
    name: str,
) -> None:
    known = optimizers.named(name)
    defaults = {"lr": 2e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    assert known.settings(RunConfig().train) == {argument: defaults[argument] for argument in known.hyperparameters}
    assert known.instead != name
    assert set(known.devices) <= set(optimizers.named(known.instead).devices)
    assert known.device_bytes <= known.state_bytes


def test_every_engine_has_the_default_and_auto_is_it() -> None:
    assert optimizers.named("auto") is optimizers.DEFAULT
    assert all(optimizers.DEFAULT.name in optimizers.of_engine(engine) for engine in ("fast", "peft", "fsdp", "zero"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_env_check_has_steps_to_hold_each_against(name: str) -> None:
    """Published ones, or those of its class in float64, which bitsandbytes' classes do not compute."""
    if OPTIMIZERS[name].kind not in check.EXACT:
        assert torch.isfinite(check.steps_of(name, "cpu", torch.float64)).all()


def test_env_check_holds_a_class_without_published_steps_against_itself_in_float64() -> None:
    place = Device(device="cpu", dtype="float32")
    assert check.fault(place, "adafactor", None) is None
    of_another = check.steps_of("adafactor", "cpu", torch.float64)
    assert check.fault(place, "adamw", of_another) == "does not match AdamW in float64"
