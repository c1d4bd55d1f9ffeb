"""Space: free bytes and inodes where output, cache and scratch lie, against what a run writes there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.places import elsewhere, listed
from loradock.errors import DiskFull
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Space
from loradock.text.amounts import size_text

MIB, GIB = 1 << 20, 1 << 30
FEWEST_BYTES = 16 * MIB
FEWEST_INODES, FEW_INODES = 64, 2000
OUTPUT_BYTES = 3 * 512 * MIB
"""Three checkpoints of an 8B model's adapter at rank 16: weights and AdamW's two moments in float32."""
CACHE_BYTES, SCRATCH_BYTES = 256 * MIB, 256 * MIB
PREPARED_PER_BYTE = 2
UNPACKED = {".gz": 5, ".zst": 5, ".parquet": 4}


@dataclass(frozen=True, kw_only=True)
class Disk:
    """One file system: the roles that share it, a folder of theirs, what is free and what they are to write."""

    roles: tuple[str, ...]
    folder: Path
    space: Space
    needed_bytes: int
    is_counted: bool


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Folders on one file system share what is free there."""
    return [finding for disk in disks(host, plan) for finding in judge(disk, plan)]


def disks(host: Host, plan: Intent) -> list[Disk]:
    """The file systems of the run's folders."""
    needed = needed_bytes(host, plan)
    needs: dict[int, Disk] = {}
    for role, folder in plan.folders.items():
        place = host.nearest(folder)
        space = host.space(place)
        if space is None:
            continue
        need = needs.get(space.device)
        needs[space.device] = Disk(
            roles=(*(need.roles if need else ()), role),
            folder=need.folder if need else place,
            space=space,
            needed_bytes=needed[role] + (need.needed_bytes if need else 0),
            is_counted=plan.config is not None,
        )
    return list(needs.values())


def needed_bytes(host: Host, plan: Intent) -> dict[str, int]:
    """Bytes that a run writes, by role. What a configured run keeps in its output `model-space` counts exactly."""
    if plan.config is None:
        return {"output": OUTPUT_BYTES, "cache": CACHE_BYTES, "scratch": SCRATCH_BYTES}
    prepared = sum(
        host.size_bytes(Path(source.path)) * PREPARED_PER_BYTE * UNPACKED.get(Path(source.path).suffix, 1)
        for source in plan.config.data.sources
    )
    return {"output": 0, "cache": max(CACHE_BYTES, prepared), "scratch": SCRATCH_BYTES}


def judge(disk: Disk, plan: Intent) -> list[Finding]:
    """Nothing can be written: an error. Less than a run of this kind writes: a warning."""
    names, remedy = listed(disk.roles), elsewhere(disk.roles[0], plan)
    free_mib, inodes = disk.space.free_bytes // MIB, disk.space.free_inodes
    findings: list[Finding] = []
    if disk.space.free_bytes < FEWEST_BYTES:
        what = f"{disk.folder} ({names}) has less than {FEWEST_BYTES // MIB} MiB free"
        findings.append(error(what, remedy=remedy, ends=DiskFull, free_mib=free_mib))
    elif disk.space.free_bytes < disk.needed_bytes:
        kind = "this run" if disk.is_counted else "a run with an 8B model"
        most = size_text(disk.needed_bytes)
        what = f"{disk.folder} ({names}) has less free than the {most} that {kind} may write there"
        findings.append(warning(what, remedy=remedy, free_mib=free_mib))
    if inodes is not None and inodes < FEWEST_INODES:
        findings.append(error(_few(disk, names, FEWEST_INODES), remedy=remedy, ends=DiskFull))
    elif inodes is not None and inodes < FEW_INODES:
        findings.append(warning(_few(disk, names, FEW_INODES), remedy=remedy))
    return findings or [ok(f"space for {names}", free_gib=round(disk.space.free_bytes / GIB, 1))]


def _few(disk: Disk, names: str, limit: int) -> str:
    return f"{disk.folder} ({names}) has inodes for fewer than {limit} more files"


CHECK = Check(
    name="space",
    group="system",
    proves="Output, cache and scratch have enough free space and inodes for a run.",
    look=look,
)
