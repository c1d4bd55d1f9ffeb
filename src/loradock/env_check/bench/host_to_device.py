"""Host to device: pinned memory to the GPU and back, over PCIe."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent
from loradock.env_check.known import peak
from loradock.env_check.seen import meanwhile, own_cards
from loradock.env_check.speeds import judge, medians
from loradock.facts import Facts, Gpu
from loradock.machine import Host
from loradock.machine.answers import GpuState

SIZE_BYTES = 256 << 20


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Every GPU that this process may use, one after another: side by side they would share the machine's memory."""
    gpus = own_cards(host, facts)
    return [_on_gpu(host, number, gpu, facts.gpus[number]) for number, gpu in gpus.items()]


def _on_gpu(host: Host, number: int, state: GpuState, gpu: Gpu) -> Finding:
    """Both directions in turns; the link wakes up to its full generation meanwhile."""
    import torch

    with torch.cuda.device(number):
        pinned = torch.empty(SIZE_BYTES, dtype=torch.uint8, pin_memory=True)
        on_gpu = torch.empty(SIZE_BYTES, dtype=torch.uint8, device=f"cuda:{number}")
        seconds = medians(
            {
                "to_device": lambda: on_gpu.copy_(pinned, non_blocking=True),
                "to_host": lambda: pinned.copy_(on_gpu, non_blocking=True),
            },
            settle=torch.cuda.synchronize,
        )
    known = peak(gpu.name)
    return judge(
        "host-to-device",
        {f"{way}_gb_per_second": SIZE_BYTES / duration / 1e9 for way, duration in seconds.items()},
        subject=f"pinned memory to {state.label} and back",
        peak=known,
        published=known and known.pcie,
        gpu=meanwhile(host, state),
    )


CHECK = Check(
    name="host-to-device",
    group="bench",
    proves="Transfers between pinned memory and each GPU reach their share of the PCIe link's GB/s.",
    look=look,
    level="bench",
    needs="gpu",
    limit_seconds=60,
)
