"""Several stand-in GPUs, a process each, over the stand-in NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakegpu.commands import Ended, OneGpu, run, training

BATCH = ("train.global_batch=8", "train.micro_batch=1", "data.max_length=64")


def launched(place: Path, *settings: str, devices: int, model: Path, data: Path) -> Ended:
    """A training by `torchrun`, a process for each device."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}")
    ended = run(place, *training(*BATCH, *settings, model=model, data=data), launcher=launcher, devices=devices)
    assert ended.exit_code == 0, ended.text[-5000:]
    return ended


@pytest.fixture(scope="module")
def alone(gpu: OneGpu, tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Ended:
    """The same training on one device."""
    return gpu.train(tmp_path_factory.mktemp("alone") / "run", *BATCH, model=llama, data=rows)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.full)])
def test_ddp_trains_what_one_device_trains(
    tmp_path: Path, llama: Path, rows: Path, alone: Ended, devices: int
) -> None:  # fmt: skip
    ended = launched(tmp_path / "run", devices=devices, model=llama, data=rows)
    assert ended.losses == pytest.approx(alone.losses, rel=1e-3)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.full)])
def test_fsdp_trains_what_one_device_trains(
    tmp_path: Path, llama: Path, rows: Path, alone: Ended, devices: int
) -> None:  # fmt: skip
    ended = launched(tmp_path / "run", "train.parallel=fsdp", devices=devices, model=llama, data=rows)
    assert ended.losses == pytest.approx(alone.losses, rel=2e-2)
