"""File system: what kind output, cache and scratch lie on, where that kind loses data, locks or memory."""

from __future__ import annotations

import shlex

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.env_check.system.places import elsewhere
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Mount

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "afs", "ceph", "lustre", "gpfs", "beegfs")
LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "nobrl")
IN_MEMORY = ("tmpfs", "ramfs")
NOT_FOREIGN = ("fuse.fuse-overlayfs", "fuse.lxcfs")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Where no run is named nothing is written, so nothing can be lost with the container."""
    findings: list[Finding] = []
    kinds: list[str] = []
    for role, folder in plan.folders.items():
        mount = host.mount(host.nearest(folder))
        if mount is None:
            continue
        kinds.append(f"{role} on {mount.kind}")
        if what := judge(mount, role, is_run=plan.config is not None, in_container=facts.in_container):
            remedy = elsewhere(role, plan)
            if role == "output" and facts.in_container and mount.kind in ("overlay", *IN_MEMORY):
                remedy = f'docker run -v "$PWD"/runs:{shlex.quote(str(folder))} ...'
            findings.append(warning(what, remedy=remedy))
    return findings or [ok(", ".join(kinds) or "no mounts visible")]


def judge(mount: Mount, role: str, *, is_run: bool, in_container: bool) -> str:
    """What is to be feared there for a folder of this role, or ""."""
    where = f"{role} lies on {mount.kind} ({mount.point})"
    if role == "output" and is_run and in_container and mount.kind == "overlay":
        return f"{where}: it is lost when the container is removed"
    if role == "output" and is_run and mount.kind in IN_MEMORY:
        return f"{where}: checkpoints use memory, and are lost on a restart"
    if mount.kind.startswith("fuse.") and mount.kind not in NOT_FOREIGN:
        return f"{where}: renames and locks are unreliable there, and memory maps are slow"
    if mount.kind == "9p" and mount.point != "/":
        return f"{where}: much slower than a local disk, and without shared locks"
    if mount.kind in NETWORK:
        return _of_network(mount, role, where)
    return ""


def _of_network(mount: Mount, role: str, where: str) -> str:
    if role == "scratch":
        return f"{where}: temporary files and compiled kernels belong on a local disk"
    if without := [option for option in mount.options if option in LOCAL_LOCKS]:
        return f"{where} with {without[0]}: the run directory cannot be locked between nodes"
    return ""


CHECK = Check(
    name="filesystem",
    group="system",
    proves="Output, cache and scratch are on persistent file systems with locks.",
    look=look,
)
