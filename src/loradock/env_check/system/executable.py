"""Executable: code that is compiled at run time may be started and mapped where it is put."""

from __future__ import annotations

import shlex

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.env_check.system.cache_places import places
from loradock.env_check.system.places import listed, reason
from loradock.facts import Facts
from loradock.machine import Host
from loradock.machine.answers import Attempt


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Triton compiles a launcher in the scratch folder, and loads it from its cache."""
    roles: dict[str, list[str]] = {}
    folders = {"TMPDIR": plan.scratch}
    folders |= {place.variable: place.folder for place in places(host, plan) if place.is_for_gpus}
    for role, folder in folders.items():
        roles.setdefault(str(host.nearest(folder)), []).append(role)
    findings: list[Finding] = []
    for folder_of_role in roles.values():
        attempt = host.try_executing(host.nearest(folders[folder_of_role[0]]))
        if finding := judge(attempt, folder_of_role, has_gpu=plan.uses_gpu(facts), in_container=facts.in_container):
            findings.append(finding)
    return findings or [ok("compiled code can be executed in the scratch folder and in Triton's cache")]


def judge(attempt: Attempt, variables: list[str], *, has_gpu: bool, in_container: bool) -> Finding | None:
    """On a CPU nothing of this is compiled unless a user asks for it. What cannot be written is others' subject."""
    steps = [step for step in attempt.failed if step != "write"]
    if not steps:
        return None
    refused = " or ".join(steps)
    what = f"{attempt.folder} ({listed(variables)}): the system refuses to {refused} there"
    what += f" ({reason(attempt.failed[steps[0]])}), and Triton loads what it compiles"
    remedy = f"export {variables[0]}=DIR"
    if in_container:
        remedy = f"docker run --tmpfs {shlex.quote(attempt.folder)}:rw,exec,nosuid,nodev ..."
    return error(what, remedy=remedy) if has_gpu else warning(what, remedy=remedy)


CHECK = Check(
    name="executable",
    group="system",
    proves="Compiled code can be executed in the scratch folder and in Triton's cache.",
    look=look,
)
