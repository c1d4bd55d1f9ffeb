"""Visible: the GPUs that are chosen exist, are counted as meant, and are enough for the processes."""

from __future__ import annotations

from collections.abc import Mapping

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.seen import used_gpus
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import GpuState
from loradock.text.amounts import counted

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """What was chosen against what is left of it, then processes against GPUs."""
    findings = [
        finding
        for finding in (
            cut_short(host.environ.get(VISIBLE), len(facts.gpus)),
            too_few(facts),
            unordered(host.gpu_states(), host.environ),
        )
        if finding
    ]
    return findings or [ok(f"{counted(len(used_gpus(host)) or len(facts.gpus), 'GPU')} for this process")]


def cut_short(visible: str | None, count: int) -> Finding | None:
    """CUDA stops at the first entry that names no GPU, without a word."""
    entries = [] if visible is None else [entry.strip() for entry in visible.split(",")]
    if len(entries) <= count or any(entry.startswith("MIG-") for entry in entries):
        return None
    return warning(
        f"{VISIBLE} is {visible!r}: entry {entries[count]!r} names no GPU, which leaves {count} of {len(entries)}",
        remedy=f"export {VISIBLE}={','.join(entries[:count])}",
    )


def too_few(facts: Facts) -> Finding | None:
    """More processes than GPUs would share a GPU, which NCCL refuses; `mig` looks at those on a divided GPU."""
    count, gpus = facts.processes_here, len(facts.gpus)
    if facts.world_size == 1 or count <= gpus or any(" MIG " in gpu.name for gpu in facts.gpus):
        return None
    return error(
        f"{count} processes of this run share {counted(gpus, 'GPU')} here",
        remedy=f"torchrun --nproc-per-node {gpus} -m loradock train ...",
    )


def unordered(states: tuple[GpuState, ...], environ: Mapping[str, str]) -> Finding | None:
    """A run counts along the PCI bus unless an order is set: by another one its plan is made for the wrong GPU."""
    order, entries = environ.get(ORDER) or "PCI_BUS_ID", (environ.get(VISIBLE) or "").split(",")
    names = sorted({gpu.name for gpu in states if gpu.name})
    if len(names) < 2 or order == "PCI_BUS_ID" or all(entry.strip().startswith(("GPU-", "MIG-")) for entry in entries):
        return None
    return warning(
        f"{ORDER} is {order!r}: CUDA counts {' and '.join(names)} in another order than nvidia-smi and "
        "the plan of a run",
        remedy=f"export {ORDER}=PCI_BUS_ID",
    )


CHECK = Check(
    name="visible",
    group="gpu",
    proves="Every GPU in CUDA_VISIBLE_DEVICES exists, and there is one per process.",
    look=look,
    needs="gpu",
)
