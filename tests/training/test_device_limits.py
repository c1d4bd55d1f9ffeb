"""What a run may take of a GPU: its share of the memory, and which of torch's attention kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from whole_runs import train

from loradock.training import sdpa
from loradock.training.device_memory import forbid_more

pytestmark = pytest.mark.thin(1)

ENABLED = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
}


@pytest.fixture(autouse=True)
def all_kernels() -> Iterator[None]:
    yield
    sdpa.allow("auto")


def enabled() -> list[str]:
    return [name for name, is_on in ENABLED.items() if is_on()]


@pytest.mark.parametrize("kernel", ENABLED)
def test_the_kernel_that_is_named_is_the_only_one_left(kernel: str) -> None:
    sdpa.allow(kernel)
    assert enabled() == [kernel]
    sdpa.allow("auto")
    assert enabled() == list(ENABLED)


def test_a_run_chooses_among_the_kernels_that_it_asks_for_and_keeps_to_its_share(
    tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | str] = []
    monkeypatch.setattr("loradock.training.device_memory.forbid_more", asked.append)
    settings = ("train.max_steps=1", "data.max_length=64", "model.sdpa_kernel=math", "train.memory_fraction=0.5")
    train(tmp_path / "run", *settings, model=llama, data=rows)
    assert enabled() == ["math"]
    assert asked == [0.5]


def test_the_allocator_gets_the_share_that_is_asked_for_and_no_limit_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    forbid_more("auto")
    forbid_more(0.5)
    assert given == [0.5]
