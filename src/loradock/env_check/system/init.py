"""Init: PID 1 of the container hears SIGTERM, and clears away the orphans that it inherits."""

from __future__ import annotations

import re

from loradock.env_check.base import Check, Finding, Intent, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

NO_INIT = re.compile(r"python[\d.]*|loradock|torchrun|sh|bash|dash|ash|zsh|busybox|sleep|tail|pt_main_thread")
REMEDY = "docker run --init ..."


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """Whether it hears is read from its signal masks; whether it reaps is tried out, where it claims to be an init."""
    first = host.process_one()
    if not facts.in_container or first is None:
        return [ok("not in a container" if first else "PID 1 is not visible")]
    if not first.hears_sigterm:
        if not NO_INIT.fullmatch(first.name):
            return [ok(f"PID 1 is {first.name}")]
        what = f"PID 1 is {first.name}, which does not receive SIGTERM: stopping the container loses the newest steps"
        return [warning(what, remedy=REMEDY)]
    if not host.orphan_is_reaped():
        what = f"PID 1 ({first.name}) does not reap zombie processes: they accumulate until no process can be started"
        return [warning(what, remedy=REMEDY)]
    return [ok(f"PID 1 ({first.name}) handles SIGTERM and reaps zombie processes")]


CHECK = Check(
    name="init",
    group="system",
    proves="PID 1 of the container handles SIGTERM and reaps zombie processes.",
    look=look,
)
