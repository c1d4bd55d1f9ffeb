"""Compiler: the C compiler that Triton would take, and Python's headers; each first kernel is compiled with them."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

NAMES = ("gcc", "clang")


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """CC where it is set, whatever it is, then gcc, then clang: Triton's own order."""
    say = error if plan.uses_gpu(facts) else warning
    findings: list[Finding] = []
    compiler = host.environ.get("CC")
    programs = [path for name in ([compiler] if compiler is not None else NAMES) if (path := host.program(name))]
    if not programs:
        what = "there is no C compiler" if compiler is None else f"CC is {compiler!r}, which is not a program here"
        remedy = "unset CC" if compiler is not None else "apt-get install -y gcc libc6-dev"
        findings.append(say(f"{what}: Triton cannot compile a kernel", remedy=remedy))
    headers = host.python_headers()
    if not host.exists(f"{headers}/Python.h"):
        version = ".".join(facts.python.split(".")[:2])
        what = f"{headers} has no Python.h: Triton cannot compile a kernel's launcher"
        findings.append(say(what, remedy=f"apt-get install -y python{version}-dev"))
    return findings or [ok(f"{programs[0]} and Python's headers")]


CHECK = Check(
    name="compiler",
    group="system",
    proves="Triton finds a C compiler and Python's headers.",
    look=look,
)
