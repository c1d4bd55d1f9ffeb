"""Several stand-in GPUs, a process each, over the stand-in NCCL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import mixtures
import pytest
from fakegpu.commands import Ended, Gpus
from tiny import write_rows

from loradock.plan.memory.sharded import NCCL_BYTES

BATCH = ("train.global_batch=8", "train.micro_batch=1", "data.max_length=64")

MEASURED = """
import atexit, json, os, torch
from loradock.training.backends.fsdp import backend
real, seen = backend.shard, {}
def shard(*model, **more):
    seen["read"] = torch.cuda.memory_allocated()
    seen["reading"] = torch.cuda.max_memory_allocated()
    return real(*model, **more)
backend.shard = shard
def end():
    seen["peak"] = torch.cuda.max_memory_allocated()
    with open(f"memory-{os.environ['RANK']}.json", "w") as file:
        json.dump(seen, file)
atexit.register(end)
"""
"""What the allocator holds of each process: once the base is read, at most until then, and at most at all."""
WORKSPACE = 32 << 20
"""Of a matrix product's library, which the plan counts among the runtime's bytes."""


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


@pytest.mark.thin(4)
def test_ddp_trains_what_one_device_trains(gpus: Gpus, tmp_path: Path, llama: Path, rows: Path, alone: Ended) -> None:
    ended = gpus.train_on_all(tmp_path / "run", *BATCH, model=llama, data=rows)
    assert ended.losses == pytest.approx(alone.losses, rel=1e-3)


@pytest.mark.thin(4)
def test_fsdp_trains_what_one_device_trains(gpus: Gpus, tmp_path: Path, llama: Path, rows: Path, alone: Ended) -> None:
    ended = gpus.train_on_all(tmp_path / "run", *BATCH, "train.parallel=fsdp", model=llama, data=rows)
    assert ended.losses == pytest.approx(alone.losses, rel=2e-2)


@pytest.mark.full
def test_a_mixture_takes_the_memory_that_is_planned_and_a_part_of_it_after_reading(gpus: Gpus, tmp_path: Path) -> None:
    """Experts, adapters on them and all: what is read is never more than the part and one matrix of all experts."""
    shape = {"hidden_size": 256, "moe_intermediate_size": 512, "num_experts": 32, "num_hidden_layers": 4}
    model = mixtures.make(tmp_path / "model", "qwen3_moe", **shape)
    data = write_rows(tmp_path / "rows.jsonl", longest=100)
    settings = ("train.parallel=fsdp", "lora.targets=[all-linear,experts]", "lora.dropout=0", "data.max_length=128")
    wide = ("train.micro_batch=4", "train.global_batch=16", "train.max_steps=2", "lora.rank=4")
    ended = gpus.train_on_all(tmp_path / "run", *settings, *wide, model=model, data=data, code=MEASURED)
    expected = ended.record["plan"]["memory_bytes"]
    planned = expected["total"] - expected["runtime"] - expected["fragmentation"] - NCCL_BYTES
    whole = expected["experts"] * gpus.count
    assert whole == pytest.approx(4 * 32 * 3 * 256 * 512 * 4.127 / 8, rel=1e-3)
    for rank in range(gpus.count):
        seen = json.loads((tmp_path / "run" / f"memory-{rank}.json").read_text())
        assert seen["read"] - WORKSPACE < 1.1 * (whole / gpus.count) + (4 << 20)
        assert seen["reading"] - seen["read"] < 3 * (whole / 12)
        assert seen["peak"] - WORKSPACE == pytest.approx(planned, rel=0.08)
