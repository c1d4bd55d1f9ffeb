"""Storage: write, fsync, lock and rename, tried out for real where output, cache and scratch lie."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.places import elsewhere, ending, listed, reason
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Attempt

HARMS = {
    "fsync": "a power failure may lose the newest checkpoint",
    "lock": "two runs in one folder are not locked against each other",
}


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """A folder that is not there yet is tried in the nearest one above it, where it would be made."""
    roles: dict[str, list[str]] = {}
    for role, folder in plan.folders.items():
        roles.setdefault(str(host.nearest(folder)), []).append(role)
    attempts = [(host.try_storage(host.nearest(plan.folders[folder[0]])), folder) for folder in roles.values()]
    findings = [finding for attempt, probe in attempts for finding in judge(attempt, probe, plan)]
    return findings or [ok("output, cache and scratch: written, synced, locked and renamed")]


def judge(attempt: Attempt, roles: list[str], plan: Intent) -> list[Finding]:
    """Without writing and renaming there is no checkpoint; without fsync or locks there is one, less safe."""
    findings: list[Finding] = []
    remedy = elsewhere(roles[0], plan)
    for step, number in attempt.failed.items():
        what = f"{attempt.folder} ({listed(roles)}): {step} failed: {reason(number)}"
        if step in HARMS:
            findings.append(warning(f"{what}; {HARMS[step]}", remedy=remedy))
        else:
            findings.append(error(what, remedy=remedy, ends=ending(number)))
    return findings


CHECK = Check(
    name="storage",
    group="system",
    proves="Write, fsync, lock and rename work in output, cache and scratch.",
    look=look,
    limit_seconds=20,
)
