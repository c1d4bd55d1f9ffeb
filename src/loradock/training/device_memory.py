"""What a GPU has left for the run, asked of the device itself: its context is there, and nothing of the model yet.

CUDA's own figures count. NVML's are those of the whole device: an instance of a divided GPU (MIG) and a limit of MPS
show a process less, and then NVML cannot say either what other processes hold of its part; all of that counts as
CUDA's own.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from loradock.distributed import collectives
from loradock.facts import Facts, Gpu
from loradock.plan.memory import RUNTIME_BYTES

PRODUCT = 256
"""Of the matrices whose product loads cuBLAS, and takes its workspace."""
SAME_SHARE = 0.1
"""By how much the totals of CUDA and NVML may differ for a whole device: the driver keeps 1 to 2 % for itself."""
ROUNDED_TO = 32 << 20
"""So that the plan is the same where the driver's own needs differ by a few pages."""


def measured(facts: Facts, *, device: str) -> Facts:
    """The facts with what CUDA itself takes of this process's GPU; as they are where the run uses none.

    All processes of a run get the worst of theirs, so that they plan the same.
    """
    if device == "cpu" or not facts.has_gpu:
        return facts
    index = facts.local_rank % len(facts.gpus)
    free, total = in_use(torch.device("cuda", index))
    own = of_device(facts.gpus[index], free=free, total=total)
    worst = collectives.worst(facts, (own.memory_bytes, -own.taken_bytes, -(own.runtime_bytes or 0)))
    agreed = replace(own, memory_bytes=worst[0], taken_bytes=-worst[1], runtime_bytes=-worst[2])
    return replace(facts, gpus=tuple(agreed if each == index else gpu for each, gpu in enumerate(facts.gpus)))


def in_use(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes by cudaMemGetInfo once a product was computed, without what torch's allocator holds."""
    matrix = torch.ones(PRODUCT, PRODUCT, dtype=torch.float16, device=device)
    (matrix @ matrix).sum().item()
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device), total


def of_device(gpu: Gpu, *, free: int, total: int) -> Gpu:
    """The GPU as CUDA sees it: `runtime_bytes` is what neither the allocator nor, by NVML, another process holds.

    Where others held more than is in use now, they gave memory back since, and CUDA's share of it is assumed.
    """
    is_whole = abs(total - gpu.memory_bytes) <= SAME_SHARE * gpu.memory_bytes
    taken, used = gpu.taken_bytes if is_whole else 0, total - free
    if taken > used:
        taken = max(0, used - RUNTIME_BYTES)
    runtime = -(-(used - taken) // ROUNDED_TO) * ROUNDED_TO
    return replace(gpu, memory_bytes=total, taken_bytes=taken, runtime_bytes=runtime)


def forbid_more(fraction: float | str) -> None:
    """Let torch's allocator take no more than this share of the GPU's memory; auto: no limit. Nothing on a CPU."""
    if fraction != "auto" and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(float(fraction))
