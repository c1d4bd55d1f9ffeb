"""What a device punishes, in the loop of a training: each fault is planted once, and found.

Counts are differences between a longer and a shorter run, so that what a run does once is not in them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fakegpu.commands import Gpus, training

SETTINGS = (
    "train.cuda_graphs=false",
    "train.micro_batch=1",
    "data.max_length=64",
    "logging.every=99",
    "checkpoints.every=99",
)
"""A pass of 64 tokens, so that each optimiser step is several micro-steps."""
FEW, MANY = 2, 6
PLANTED = """
import torch
from loradock.training.backends.fast.backend import FastBackend
real = FastBackend.forward_backward
HOST = torch.ones(64)
def planted(self, *arguments, **more):
    found = real(self, *arguments, **more)
    {fault}
    return found
FastBackend.forward_backward = planted
"""
READS = "found.item()"
COPIES = "HOST.to('cuda', non_blocking=True)"
MIXES = "torch.empty(64, device='cuda') + HOST"
UNWRITTEN = "found += torch.empty(4_000_000, device='cuda').mean() * 0"
PLANTED_IN_CAPTURE = """
from loradock.training.backends.fast import model
real = model.FastModel.loss_and_gradients
def planted(self, *arguments, **more):
    found = real(self, *arguments, **more)
    found.item()
    return found
model.FastModel.loss_and_gradients = planted
"""


def per_step(
    gpu: Gpus, place: Path, *settings: str, model: Path, data: Path, code: str = "", **device: object
) -> dict[str, float]:
    """Each count of an optimiser step."""
    place.mkdir()
    settings = (*SETTINGS, *settings)
    short, long = (
        gpu.train(place / str(steps), *settings, f"train.max_steps={steps}", model=model, data=data, code=code).counts
        for steps in (FEW, MANY)
    )
    return {name: (long[name] - short[name]) / (MANY - FEW) for name in long}


@pytest.fixture(scope="module")
def plain(gpu: Gpus, tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> dict[str, float]:
    """Each count of an optimiser step that has no dropout."""
    return per_step(gpu, tmp_path_factory.mktemp("plain") / "run", "lora.dropout=0", model=llama, data=rows)


@pytest.mark.thin(4)
def test_an_optimiser_step_waits_for_the_device_once_however_many_micro_steps_it_has(plain: dict[str, float]) -> None:
    """Loss and gradient norm are read back together, through one copy."""
    assert plain["syncs"] == plain["pageable_copies"] == 1
    assert plain["mallocs"] == plain["launch_faults"] == 0
    assert plain["driver_launches"] > 100, "several micro-steps"


@pytest.mark.thin(6)
def test_dropout_costs_a_launch_a_micro_step_and_deterministic_no_more(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, plain: dict[str, float]
) -> None:
    """The tokens' keys take the step's number, for all layers; masks are made in the kernels in the products' place."""
    masked, repeatable = (
        per_step(gpu, tmp_path / setting, setting, model=llama, data=rows)
        for setting in ("lora.dropout=0.1", "deterministic=true")
    )
    micro_steps = masked["launches"] - plain["launches"]
    assert 1 < micro_steps < 10
    kernels = [found["launches"] + found["driver_launches"] + found["cublas"] for found in (plain, masked, repeatable)]
    assert kernels[1] == kernels[0] + micro_steps
    assert kernels[2] <= kernels[0] + micro_steps  # with new tensors filled it would be one for each


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("fault", "count"), [(READS, "syncs"), pytest.param(COPIES, "pageable_copies", marks=pytest.mark.full)]
)
def test_what_makes_each_micro_step_wait_is_counted(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, fault: str, count: str
) -> None:
    found = per_step(gpu, tmp_path / "planted", model=llama, data=rows, code=PLANTED.format(fault=fault))
    assert found[count] >= 5


@pytest.mark.thin(6)
def test_a_launch_that_mixes_devices_is_refused(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path) -> None:
    ended = gpu.run(tmp_path / "run", *training(model=llama, data=rows), code=PLANTED.format(fault=MIXES))
    assert ended.exit_code != 0
    assert "Expected all tensors to be on the same device" in ended.text


@pytest.mark.thin(6)
def test_memory_that_is_read_before_it_is_written_is_not_zero(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path
) -> None:
    """The guard of the loop ends a training whose loss is no number."""
    code = PLANTED.format(fault=UNWRITTEN)
    ended = gpu.run(tmp_path / "run", *training(model=llama, data=rows), code=code, poison=True)
    assert ended.exit_code != 0
    assert "nan" in ended.text.lower()
    assert gpu.run(tmp_path / "zeros", *training(model=llama, data=rows), code=code).exit_code == 0


@pytest.mark.thin(6)
def test_a_capture_that_a_device_refuses_falls_back_to_launches(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path
) -> None:
    code = PLANTED_IN_CAPTURE
    ended = gpu.train(tmp_path / "run", "train.cuda_graphs=true", model=llama, data=rows, code=code)
    assert ended.counts["capture_faults"] == 1
    assert "graph" in ended.text
