"""Shared memory: /dev/shm is there, writable, and holds what data loader workers and NCCL put into it."""

from __future__ import annotations

import math
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.loading import loading
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Space
from loradock.text.amounts import size_text

PLACE = Path("/dev/shm")
MIB = 1 << 20
GIB = 1 << 30
FLOOR_BYTES = 16 * MIB
NCCL_BYTES_PER_GPU = 32 * MIB


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Without it no worker starts; with too little a worker dies of SIGBUS in the middle of a run."""
    space = host.space(PLACE)
    if space is None or not host.may_write(PLACE):
        what = (
            f"{PLACE} is {'not there' if space is None else 'not writable'}: the processes of a run cannot share memory"
        )
        is_needed = plan.uses_gpu(facts) or loading(facts, plan).workers > 0
        remedy = _remedy(GIB, facts)
        return [error(what, remedy=remedy) if is_needed else warning(what, remedy=remedy)]
    return [judge(space, facts, plan)]


def judge(space: Space, facts: Facts, plan: Intent) -> Finding:
    """Free bytes against what the loader holds at once, and NCCL's buffers where there are several GPUs."""
    need = loading(facts, plan)
    gpus = len(facts.gpus) if plan.uses_gpu(facts) else 0
    nccl_bytes = NCCL_BYTES_PER_GPU * gpus if gpus > 1 else 0
    needed = max(FLOOR_BYTES, need.shared_bytes + nccl_bytes)
    size = f"{PLACE} holds {size_text(space.total_bytes)}{' and is filled' if space.total_bytes >= needed else ''}"
    remedy = _remedy(2 * needed, facts)
    if need.workers and space.free_bytes < need.shared_bytes:
        return error(
            f"{size}, {need.workers} data loader workers need {size_text(need.shared_bytes)} of it", remedy=remedy
        )
    if space.free_bytes < needed:
        why = f"NCCL over {gpus} GPUs and the data loader need" if gpus > 1 else "worker processes need"
        return warning(f"{size}, {why} {size_text(needed)}", remedy=remedy)
    return ok(f"{PLACE} holds {size_text(space.total_bytes)}", free_mib=space.free_bytes // MIB)


def _remedy(size: int, facts: Facts) -> str:
    gib = max(1, math.ceil(size / GIB))
    return f"docker run --shm-size={gib}g ..." if facts.in_container else f"mount -o remount,size={gib}G {PLACE}"


CHECK = Check(
    name="shared-memory",
    group="system",
    proves="/dev/shm is writable and large enough for data loader workers and NCCL.",
    look=look,
)
