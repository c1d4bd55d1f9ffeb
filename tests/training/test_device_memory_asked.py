"""The device is asked once its context is there: what the allocator holds is not CUDA's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from facts.recorded import machine

from loradock.training.device_memory import measured

pytestmark = [pytest.mark.fakegpu(compute=False), pytest.mark.thin(1)]


def test_the_allocators_own_memory_is_no_part_of_what_cuda_takes() -> None:
    free, total = torch.cuda.mem_get_info()
    there = machine("h100")
    facts = replace(there, gpus=(replace(there.gpu, memory_bytes=total),))
    before = measured(facts, device="auto").gpu
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    after = measured(facts, device="auto").gpu
    assert held.nbytes == 1 << 30
    assert before.memory_bytes == after.memory_bytes == total
    assert before.runtime_bytes == after.runtime_bytes
    assert before.runtime_bytes is not None
    assert before.runtime_bytes <= total - free + (64 << 20)
