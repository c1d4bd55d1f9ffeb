"""What CUDA itself takes of a GPU, by the device where there is one; other processes' share and MIG's told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts.recorded import config, decision, machine, planned

from loradock.facts import Gpu
from loradock.plan import memory
from loradock.training.device_memory import measured, of_device

MIB, GIB = 1 << 20, 1 << 30
H100 = Gpu(name="NVIDIA H100 80GB HBM3", memory_bytes=81_559 * MIB, capability=(9, 0))
TOTAL = 81_090 * MIB
"""What CUDA has of it: the driver keeps the rest for itself."""


def test_what_is_neither_free_nor_anothers_is_cudas_own() -> None:
    shared = replace(H100, taken_bytes=20 * GIB)
    found = of_device(shared, free=TOTAL - 20 * GIB - 500 * MIB, total=TOTAL)
    assert found == replace(shared, memory_bytes=TOTAL, taken_bytes=20 * GIB, runtime_bytes=512 * MIB)


def test_where_others_gave_memory_back_meanwhile_cudas_share_is_the_assumed_one() -> None:
    shared = replace(H100, taken_bytes=20 * GIB)
    found = of_device(shared, free=TOTAL - 18 * GIB, total=TOTAL)
    assert found.runtime_bytes == memory.RUNTIME_BYTES // (32 * MIB) * 32 * MIB + 32 * MIB
    assert found.taken_bytes == 18 * GIB - memory.RUNTIME_BYTES


@pytest.mark.parametrize("part", [10 * GIB, 40 * GIB])
def test_of_a_part_of_a_gpu_cudas_total_counts_and_nvmls_processes_do_not(part: int) -> None:
    whole = replace(H100, taken_bytes=30 * GIB)  # of the other instances, or of MPS' other clients
    found = of_device(whole, free=part - 300 * MIB, total=part)
    assert (found.memory_bytes, found.taken_bytes, found.runtime_bytes) == (part, 0, 320 * MIB)


def test_nothing_is_asked_of_a_gpu_that_the_run_does_not_use() -> None:
    there = machine("h100")
    assert measured(there, device="cpu") is there
    assert measured(machine(), device="auto") == machine()


def test_the_plan_counts_what_was_measured_and_leaves_others_their_memory() -> None:
    free = machine("h100")
    gpu = replace(free.gpu, taken_bytes=20 * GIB, runtime_bytes=512 * MIB)
    plan = planned(facts=replace(free, gpus=(gpu,)), config=config(train={"global_batch": 64}))
    assert plan.memory_bytes["runtime"] == 512 * MIB
    assert plan.memory_bytes["total"] <= 0.9 * (gpu.memory_bytes - 20 * GIB)
    why = decision(plan, "device").why
    assert "CUDA itself takes 512 MiB" in why
    assert "other processes hold 20.0 GiB" in why


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_gpu_that_is_not_there_is_assumed_and_a_cpu_has_no_cuda(engine: str) -> None:
    asked = config(engine=engine)
    assert planned(facts=machine("h100"), config=asked).memory_bytes["runtime"] == memory.RUNTIME_BYTES
    assert planned(facts=machine(), config=asked).memory_bytes["runtime"] == memory.CPU_RUNTIME_BYTES
