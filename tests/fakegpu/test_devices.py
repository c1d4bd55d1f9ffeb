"""Several stand-in GPUs, a process each, over the stand-in NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakegpu.commands import Ended, Gpus

BATCH = ("train.global_batch=8", "train.micro_batch=1", "data.max_length=64")


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.full)])
def gpus(request: pytest.FixtureRequest) -> Iterator[Gpus]:
    """So many H100s."""
    found = Gpus(request.param)
    yield found
    found.parent.end()


@pytest.fixture(scope="module")
def alone(gpu: Gpus, tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Ended:
    """The same training on one device."""
    return gpu.train(tmp_path_factory.mktemp("alone") / "run", *BATCH, model=llama, data=rows)


def test_ddp_trains_what_one_device_trains(gpus: Gpus, tmp_path: Path, llama: Path, rows: Path, alone: Ended) -> None:
    ended = gpus.train_on_all(tmp_path / "run", *BATCH, model=llama, data=rows)
    assert ended.losses == pytest.approx(alone.losses, rel=1e-3)


def test_fsdp_trains_what_one_device_trains(gpus: Gpus, tmp_path: Path, llama: Path, rows: Path, alone: Ended) -> None:
    ended = gpus.train_on_all(tmp_path / "run", *BATCH, "train.parallel=fsdp", model=llama, data=rows)
    assert ended.losses == pytest.approx(alone.losses, rel=2e-2)
