"""The host memory of a stage: what was resident before and after, and the peak that it had meanwhile."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest
from whole_runs import train

from loradock.machine import host_memory

pytestmark = pytest.mark.thin(1)

SIZE = 256 << 20


def taken_and_given_back() -> None:
    """`SIZE` bytes from the kernel, all written, and back: malloc may hold as many from before, free and resident."""
    with mmap.mmap(-1, SIZE) as block:
        for page in range(0, SIZE, mmap.PAGESIZE):
            block[page] = 1


def test_a_peak_that_is_given_back_is_seen_and_one_of_before_is_not() -> None:
    taken_and_given_back()
    with host_memory.taken() as quiet:
        pass
    with host_memory.taken() as busy:
        taken_and_given_back()
    assert quiet["peak_bytes"] - quiet["before_bytes"] < SIZE / 2
    assert busy["peak_bytes"] - busy["before_bytes"] > SIZE / 2
    assert busy["after_bytes"] - busy["before_bytes"] < SIZE / 2


def test_a_runs_record_has_the_host_memory_of_loading_its_base(tmp_path: Path, llama: Path, rows: Path) -> None:
    train(tmp_path / "run", "train.max_steps=1", "train.global_batch=8", model=llama, data=rows)
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    memory = record["loading_memory"]
    assert 0 < memory["before_bytes"] <= memory["peak_bytes"]
    assert memory["after_bytes"] <= memory["peak_bytes"]
