"""GPU memory: no other process holds a noticeable part of it."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, warning
from loradock.env_check.gpu_state import is_noticeable
from loradock.env_check.seen import each, on_host, own_cards
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState

STEPS = (75, 50, 25, 5)


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """This process holds none yet, so all that is used is another's."""
    gpus = tuple(own_cards(host, facts).values())
    return on_host(each(gpus, lambda gpu: judge(gpu, facts), fine="the memory of the GPU is free"), facts)


def judge(gpu: GpuState, facts: Facts) -> Finding | None:
    """By the sum of the processes where they are reported, else (in a container they are not) by what is in use."""
    sizes = [process.used_bytes for process in gpu.processes if process.used_bytes]
    occupied_bytes = max(sum(sizes), gpu.used_bytes or 0)
    if not gpu.memory_bytes or not is_noticeable(occupied_bytes, gpu.memory_bytes) or gpu.mig_instances:
        return None
    share = next((step for step in STEPS if occupied_bytes > step / 100 * gpu.memory_bytes), STEPS[-1])
    return warning(
        f"other processes hold more than {share} % of the memory of {gpu.label}",
        # Without root, and from within a container, it does not name those of others.
        remedy=f"sudo nvidia-smi -i {gpu.index}" if facts.in_container else f"nvidia-smi -i {gpu.index}",
        held_gib=round(occupied_bytes / 2**30, 2),
        processes=len(gpu.processes),
    )


CHECK = Check(
    name="gpu-memory",
    group="gpu",
    proves="Other processes hold no more than 2 GiB of a GPU's memory, or 5 % where that is more.",
    look=look,
    needs="gpu",
)
