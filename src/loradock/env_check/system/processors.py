"""CPUs: what the cgroup leaves of them, against what a run needs to feed its GPUs."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

PER_GPU = 2


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A process that steps and a loader that feeds it, for each GPU; one CPU is slow everywhere."""
    needed = PER_GPU * max(1, len(facts.gpus))
    if facts.cpus < needed:
        what = f"{facts.cpus} CPU(s) available to this process, a run needs {needed}"
        return [warning(what, remedy=f"docker run --cpus {needed} ...")]
    return [ok(f"{facts.cpus} CPUs")]


CHECK = Check(
    name="processors",
    group="system",
    proves="There are two CPUs per GPU: one for training, one for data loading.",
    look=look,
)
