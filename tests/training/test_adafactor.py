"""Adafactor: step by step the published algorithm, with a mean of each row and column as its state; a run by it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tiny import copy_tree
from whole_runs import train

from loradock.catalog.optimizers import OPTIMIZERS
from loradock.config.sections.train import TrainConfig
from loradock.env_check.compute import optimizer as check
from loradock.env_check.compute.places import Device
from loradock.model import optimizer

pytestmark = pytest.mark.thin(1)

RUN = ("train.max_steps=4", "train.global_batch=4", "lora.rank=4", "data.max_length=64", "train.workers=0")
ADAFACTOR = ("train.optimizer=adafactor", "train.learning_rate=1e-3", "train.weight_decay=0.1", "checkpoints.every=2")


@pytest.mark.parametrize("shape", [(16, 576), (576, 4), (64,)])
def test_fifty_steps_are_those_of_the_published_algorithm(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    weights = torch.nn.Parameter(torch.randn(shape))
    expected = weights.detach().double().clone()
    rows, columns, square = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    settings = OPTIMIZERS["adafactor"].settings(TrainConfig(learning_rate=1e-2, weight_decay=0.1))
    stepper = optimizer.by_name("adafactor", [weights], **settings)
    for step in range(1, 51):
        weights.grad = torch.randn(shape) + 0.3
        gradient = weights.grad.double()
        stepper.step()
        kept = 1 - step**-0.8
        if len(shape) == 2:  # the factors of algorithm 4
            rows = kept * rows + (1 - kept) * gradient.square().mean(dim=1, keepdim=True)
            columns = kept * columns + (1 - kept) * gradient.square().mean(dim=0, keepdim=True)
            square = rows * columns / rows.mean()
        else:
            square = kept * square + (1 - kept) * gradient.square()
        update = gradient / square.sqrt()
        update = update / max(1.0, float(update.square().mean().sqrt()))
        expected = expected * (1 - 1e-2 * 0.1) - 1e-2 * update
    assert torch.allclose(weights.detach().double(), expected, atol=1e-5)
    state = sum(each.nbytes for each in stepper.state[weights].values() if torch.is_tensor(each) and each.ndim)
    if len(shape) == 2:
        assert state == 4 * sum(shape)
        assert state <= OPTIMIZERS["adafactor"].state_bytes * weights.numel() * 1.02


def test_env_check_proves_it_and_sees_one_that_is_another() -> None:
    place = Device(device="cpu", dtype="float32")
    assert check.fault(place, "adafactor", check.exact_adafactor_steps()) is None
    assert check.fault(place, "adafactor", check.exact_steps()) == "does not match Adafactor in float64"


def test_a_run_continues_bit_by_bit_and_is_planned_and_recorded(tmp_path: Path, llama: Path, rows: Path) -> None:
    whole = train(tmp_path / "whole", *RUN, *ADAFACTOR, model=llama, data=rows)
    decided = {each["name"]: each["value"] for each in whole.record["plan"]["decisions"]}
    assert (decided["optimizer"], decided["engine"]) == ("adafactor", "peft")
    run = copy_tree(whole.directory, tmp_path / "run")
    for gone in (run / "checkpoints" / "checkpoint-4", run / "adapter"):
        shutil.rmtree(gone)
    again = train(run, *RUN, *ADAFACTOR, model=llama, data=rows)
    name = "adapter_model.safetensors"
    assert (again.adapter / name).read_bytes() == (whole.adapter / name).read_bytes()
