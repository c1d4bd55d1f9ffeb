"""Memory bandwidth: copies within the memory of the GPU, or of the machine."""

from __future__ import annotations

from typing import Any

from loradock.env_check.base import Check, Finding, Intent
from loradock.env_check.known import peak
from loradock.env_check.seen import meanwhile, own_cards
from loradock.env_check.speeds import judge, medians
from loradock.facts import Facts, Gpu
from loradock.machine import Host
from loradock.machine.answers import GpuState

GPU_BYTES, CPU_BYTES = 1 << 30, 128 << 20


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Every GPU that this process may use, one after another, or else the memory of the machine."""
    if facts.has_gpu and not plan.refuses_gpu:
        gpus = own_cards(host, facts)
        return [_on_gpu(host, number, gpu, facts.gpus[number]) for number, gpu in gpus.items()]
    rates = _rates("cpu", size_bytes=CPU_BYTES, settle=lambda: None)
    return [judge("memory-bandwidth", rates, subject="copies in the machine's memory", peak=None, published=None)]


def _on_gpu(host: Host, number: int, state: GpuState, gpu: Gpu) -> Finding:
    import torch

    with torch.cuda.device(number):
        rates = _rates(f"cuda:{number}", size_bytes=GPU_BYTES, settle=torch.cuda.synchronize)
    known = peak(gpu.name)
    subject = f"copies in the memory of {state.label}"
    published = known and known.memory
    return judge(
        "memory-bandwidth", rates, subject=subject, peak=known, published=published, gpu=meanwhile(host, state)
    )


def _rates(device: str, *, size_bytes: int, settle: Any) -> dict[str, float]:
    """GB/s: a copy reads and writes each byte, twice its size."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = medians({"copy": lambda: target.copy_(source)}, settle=settle)
    return {"copy_gb_per_second": 2 * size_bytes / seconds["copy"] / 1e9}


CHECK = Check(
    name="memory-bandwidth",
    group="bench",
    proves="Copies in the memory of each GPU reach their share of the published GB/s.",
    look=look,
    level="bench",
    limit_seconds=60,
)
