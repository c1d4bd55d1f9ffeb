"""Memory: what the cgroup leaves, against what importing the libraries and a small run take."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

GIB = 1 << 30
FEWEST_BYTES = 3 * GIB // 2
NEEDED_BYTES = 4 * GIB


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The smallest limit from this process's cgroup upwards, for all the processes of the run on this machine."""
    limits = host.cgroup_values("memory", v2="memory.max", v1="memory.limit_in_bytes")
    limit = min(facts.memory_bytes, *limits) if limits else facts.memory_bytes
    return [judge(limit, processes=facts.processes_here, is_limited=limit < host.memory_bytes())]


def judge(limit_bytes: int, *, processes: int, is_limited: bool) -> Finding:
    """Importing torch, transformers and bitsandbytes alone takes about 1 GiB in each process, with CUDA three."""
    needed_gib = processes * NEEDED_BYTES // GIB
    whose = "the cgroup's limit" if is_limited else "this machine's memory"
    what = f"{whose} is {limit_bytes / GIB:.1f} GiB, a run takes about {needed_gib} GiB before any model is loaded"
    remedy = f"docker run --memory {needed_gib}g ..."
    if not is_limited:
        remedy = f"fallocate -l {needed_gib}G /swapfile && chmod 600 /swapfile && mkswap /swapfile && swapon /swapfile"
    if limit_bytes < processes * FEWEST_BYTES:
        return error(what, remedy=remedy, limit_gib=limit_bytes / GIB)
    if limit_bytes < processes * NEEDED_BYTES:
        return warning(what, remedy=remedy, limit_gib=limit_bytes / GIB)
    return ok(f"{limit_bytes / GIB:.0f} GiB", limit_gib=round(limit_bytes / GIB, 1))


CHECK = Check(
    name="memory",
    group="system",
    proves="The cgroup's memory limit allows the libraries and a small run.",
    look=look,
)
