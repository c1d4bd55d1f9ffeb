"""Lion: step by step the published algorithm, and a run by it continues bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tiny import copy_tree
from whole_runs import train

from loradock.catalog.optimizers import OPTIMIZERS
from loradock.cli import cli
from loradock.config.sections.train import TrainConfig
from loradock.env_check.compute import optimizer as check
from loradock.env_check.compute.places import Device
from loradock.errors import ConfigError
from loradock.model import optimizer

pytestmark = pytest.mark.thin(1)

RUN = ("train.max_steps=4", "train.global_batch=4", "lora.rank=4", "data.max_length=64", "train.workers=0")
LION = ("train.optimizer=lion", "train.learning_rate=1e-4", "train.weight_decay=0.1", "checkpoints.every=2")


def test_fifty_steps_are_those_of_the_published_algorithm() -> None:
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(64, 32))
    expected, mean = weights.detach().double().clone(), torch.zeros(64, 32, dtype=torch.float64)
    settings = OPTIMIZERS["lion"].settings(TrainConfig(learning_rate=1e-3, weight_decay=0.1))
    stepper = optimizer.by_name("lion", [weights], **settings)
    for _ in range(50):
        weights.grad = torch.randn(64, 32)
        gradient = weights.grad.double()
        stepper.step()
        expected = expected * (1 - 1e-3 * 0.1) - 1e-3 * (0.9 * mean + 0.1 * gradient).sign()
        mean = 0.99 * mean + 0.01 * gradient
    assert torch.allclose(weights.detach().double(), expected, atol=1e-5)
    state = sum(each.nbytes for each in stepper.state[weights].values() if torch.is_tensor(each))
    assert state == OPTIMIZERS["lion"].state_bytes * weights.numel()


def test_env_check_proves_it_and_sees_one_that_is_another() -> None:
    place = Device(device="cpu", dtype="float32")
    assert check.fault(place, "lion", check.exact_lion_steps()) is None
    assert check.fault(place, "lion", check.exact_steps()) == "does not match Lion in float64"


def test_a_run_continues_bit_by_bit_and_is_planned_and_recorded(tmp_path: Path, llama: Path, rows: Path) -> None:
    whole = train(tmp_path / "whole", *RUN, *LION, model=llama, data=rows)
    decided = {each["name"]: each["value"] for each in whole.record["plan"]["decisions"]}
    assert (decided["optimizer"], decided["engine"]) == ("lion", "peft")
    run = copy_tree(whole.directory, tmp_path / "run")
    for gone in (run / "checkpoints" / "checkpoint-4", run / "adapter"):
        shutil.rmtree(gone)
    again = train(run, *RUN, *LION, model=llama, data=rows)
    name = "adapter_model.safetensors"
    assert (again.adapter / name).read_bytes() == (whole.adapter / name).read_bytes()


def test_the_fast_engine_says_by_name_that_it_has_it_not(tmp_path: Path, llama: Path, rows: Path) -> None:
    with pytest.raises(ConfigError, match="its optimiser is adamw_fused, not lion"):
        train(tmp_path / "run", *RUN, *LION, "engine=fast", model=llama, data=rows)


@pytest.mark.parametrize("setting", ["train.betas=[0.9,0.95]", "train.eps=1e-6"])
def test_what_only_adamw_has_is_reported(setting: str) -> None:
    for name, is_told in (("lion", True), ("adamw", False)):
        words = (
            "config",
            "show",
            "--model",
            ".",
            "--data",
            "rows.jsonl",
            "--set",
            setting,
            "--set",
            f"train.optimizer={name}",
        )
        shown = CliRunner().invoke(cli, [*words, "--set", f"train.optimizer={name}"])
        assert (f"{setting.partition('=')[0]} has no effect: Lion does not have it" in shown.stderr) == is_told
