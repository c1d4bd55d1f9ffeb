"""Tasks: how many more processes and threads may be started, against those that a run starts."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

FEWEST = 64
NEEDED = 256


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The cgroup's limit counts threads too; the user's limit does not bind root."""
    findings: list[Finding] = []
    limits = host.cgroup_values("pids", v2="pids.max", v1="pids.max")
    if limits:
        findings += judge(min(limits), whose="the cgroup's limit", remedy="docker run --pids-limit -1 ...", facts=facts)
    soft, hard = host.limit("processes")
    if soft is not None and host.uid() != 0:
        remedy = "ulimit -u unlimited" if hard is None else f"ulimit -u {hard}"
        if soft == hard:
            remedy = (
                "docker run --ulimit nproc=-1 ..." if facts.in_container else "sudo prlimit --nproc=unlimited --pid $$"
            )
        findings += judge(soft, whose="this user's limit", remedy=remedy, facts=facts)
    return findings or [ok("no limit on processes and threads that affects a run")]


def judge(limit: int, *, whose: str, remedy: str, facts: Facts) -> list[Finding]:
    """Each process starts a thread for each CPU, several times over, and the loader's workers do too."""
    needed = max(NEEDED, 4 * facts.cpus) * facts.processes_here
    what = f"{whose} is {limit} processes and threads, a run starts up to {needed}"
    if limit < FEWEST:
        return [error(what, remedy=remedy)]
    return [warning(what, remedy=remedy)] if limit < needed else []


CHECK = Check(
    name="tasks",
    group="system",
    proves="The limits on processes and threads allow data loader workers and compute threads.",
    look=look,
)
