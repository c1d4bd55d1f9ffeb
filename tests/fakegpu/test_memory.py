"""A stand-in GPU that is too small, or partly taken: at load, at the first pass, and in the middle of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from fakegpu.commands import Ended, Gpus, training
from tiny import make_llama, write_rows

OUT_OF_MEMORY = 80
MIB, GIB = 1 << 20, 1 << 30
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
WIDE = (
    "train.micro_batch=8",
    "train.cuda_graphs=false",
    "data.max_length=192",
    "train.max_steps=2",
    "train.global_batch=16",
    "lora.rank=4",
)
SHRINKS = """
import os, torch
from loradock.training.backends.fast.backend import FastBackend
real, calls = FastBackend.{method}, []
def shrunk(self, *arguments, **more):
    calls.append(1)
    if len(calls) == {call}:
        torch.cuda.empty_cache()
        os.environ["FAKEGPU_MEMORY"] = "{memory}"
    return real(self, *arguments, **more)
FastBackend.{method} = shrunk
"""
"""From a call of a method on, the device has so many bytes: the real allocator then finds no more."""


@dataclass(frozen=True, kw_only=True)
class Wide:
    """A model, its data, and what a training with them gave on a device with room."""

    model: Path
    data: Path
    ended: Ended


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path
) -> None:
    ended = gpu.run(tmp_path / "run", *training(model=llama, data=rows), memory=100 * MIB)
    assert ended.exit_code == OUT_OF_MEMORY, ended.text[-3000:]
    assert "base model ..." not in ended.text


@pytest.mark.thin(4)
def test_what_another_process_has_taken_is_not_planned_with(gpu: Gpus, tmp_path: Path, llama: Path, rows: Path) -> None:
    full = gpu.run(tmp_path / "full", *training(model=llama, data=rows), taken=79 * GIB - 20 * MIB)
    assert full.exit_code == OUT_OF_MEMORY, full.text[-3000:]
    assert "base model ..." not in full.text
    partly = gpu.train(tmp_path / "partly", model=llama, data=rows, taken=69 * GIB)
    assert "other processes hold 69.0 GiB" in partly.why("device")
    assert "of 9.0 GiB" in partly.why("micro_batch")


@pytest.mark.thin(4)
def test_where_nvml_and_the_runtime_differ_the_smaller_memory_counts(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path
) -> None:
    """A MIG slice, or a share of MPS: NVML tells of the whole device."""
    ended = gpu.train(tmp_path / "run", model=llama, data=rows, memory=10 * GIB, nvml_memory=79 * GIB)
    assert "10 GiB" in ended.why("device")


@pytest.fixture(scope="module")
def wide(gpu: Gpus, tmp_path_factory: pytest.TempPathFactory) -> Wide:
    """A training whose passes are wide enough to be halved."""
    folder = tmp_path_factory.mktemp("wide")
    model = make_llama(folder / "model", **SHAPE)
    data = write_rows(folder / "rows.jsonl", longest=100)
    return Wide(model=model, data=data, ended=gpu.train(folder / "run", *WIDE, model=model, data=data))


@pytest.mark.thin(4)
@pytest.mark.parametrize(("method", "call"), [("start", 1), ("micro_batches", 2)], ids=["first pass", "later"])
def test_a_device_that_is_full_halves_the_micro_batch_and_goes_on(
    gpu: Gpus, tmp_path: Path, wide: Wide, method: str, call: int
) -> None:
    memory = int(0.75 * max(wide.ended.peaks))
    code = SHRINKS.format(method=method, call=call, memory=memory)
    ended = gpu.train(tmp_path / "run", *WIDE, model=wide.model, data=wide.data, code=code)
    assert "micro_batch 4 instead of 8" in ended.text
    assert ended.losses == pytest.approx(wide.ended.losses, rel=1e-2)
    assert ended.peaks[-1] <= memory < wide.ended.peaks[-1]
