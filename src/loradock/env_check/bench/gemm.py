"""GEMM: large matrix products, in the 16-bit formats on a GPU and in float32 on the CPU."""

from __future__ import annotations

from typing import Any

from loradock.env_check.base import Check, Finding, Intent
from loradock.env_check.known import peak
from loradock.env_check.seen import meanwhile, own_cards
from loradock.env_check.speeds import judge, medians
from loradock.facts import Facts, Gpu
from loradock.machine import Host
from loradock.machine.answers import GpuState

GPU_SIZE, CPU_SIZE = 8192, 2048


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Every GPU that this process may use, one after another, or else the CPU."""
    if facts.has_gpu and not plan.refuses_gpu:
        gpus = own_cards(host, facts)
        return [_on_gpu(host, number, gpu, facts.gpus[number]) for number, gpu in gpus.items()]
    rates = _rates(["float32"], device="cpu", size=CPU_SIZE, settle=lambda: None)
    return [judge("gemm", rates, subject="float32 products on the CPU", peak=None, published=None)]


def _on_gpu(host: Host, number: int, state: GpuState, gpu: Gpu) -> Finding:
    import torch

    # Before Ampere bf16 is computed without tensor cores.
    formats = ["bfloat16", "float16"] if gpu.capability >= (8, 0) else ["float16"]
    with torch.cuda.device(number):
        rates = _rates(formats, device=f"cuda:{number}", size=GPU_SIZE, settle=torch.cuda.synchronize)
    known = peak(gpu.name)
    subject = f"{' and '.join(formats)} products on {state.label}"
    published = known and known.tflops
    return judge("gemm", rates, subject=subject, peak=known, published=published, gpu=meanwhile(host, state))


def _rates(formats: list[str], *, device: str, size: int, settle: Any) -> dict[str, float]:
    """TFLOP/s by format: one square product of each a round, of 2 n^3 operations."""
    import torch

    pairs = {
        name: [torch.randn(size, size, device=device, dtype=getattr(torch, name)) for _ in "ab"] for name in formats
    }
    seconds = medians({name: lambda pair=pair: pair[0] @ pair[1] for name, pair in pairs.items()}, settle=settle)
    short = {"bfloat16": "bf16", "float16": "fp16"}
    return {f"{short.get(name, name)}_tflops": 2 * size**3 / duration / 1e12 for name, duration in seconds.items()}


CHECK = Check(
    name="gemm",
    group="bench",
    proves="Large matrix products reach their share of the published TFLOP/s of each GPU.",
    look=look,
    level="bench",
    limit_seconds=120,
)
