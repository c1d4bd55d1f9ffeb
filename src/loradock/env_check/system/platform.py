"""Platform: operating system, kernel, C library, architecture and Python, against what the wheels are built for."""

from __future__ import annotations

from loradock.env_check.base import Check, Finding, Intent, error, ok, warning
from loradock.facts import Facts
from loradock.machine import Host

GLIBC = (2, 28)
ARCHITECTURES = ("x86_64", "aarch64")
PYTHONS = ((3, 11), (3, 13))


def look(host: Host, facts: Facts, plan: Intent) -> list[Finding]:
    """The wheels of torch are manylinux_2_28, and the lock is for these Pythons."""
    findings: list[Finding] = []
    libc, machine = host.glibc(), host.machine()
    python = tuple(int(part) for part in facts.python.split(".")[:2])
    image = "docker run --gpus all loradock ..."
    if libc is None or libc < GLIBC:
        name = "no glibc" if libc is None else f"glibc {_dotted(libc)}"
        findings.append(error(f"{name}; the wheels of torch need glibc {_dotted(GLIBC)} or newer", remedy=image))
    if machine not in ARCHITECTURES:
        findings.append(error(f"{machine}: torch has CUDA wheels for {' and '.join(ARCHITECTURES)} only", remedy=image))
    if python < PYTHONS[0]:
        what = f"Python {facts.python} is older than {_dotted(PYTHONS[0])}"
        findings.append(error(what, remedy=f"uv venv --python {_dotted(PYTHONS[1])}"))
    elif python > PYTHONS[1]:
        what = f"Python {facts.python} is newer than {_dotted(PYTHONS[1])}, the newest that the lock file supports"
        findings.append(warning(what, remedy=f"uv venv --python {_dotted(PYTHONS[1])}"))
    return findings or [ok(_described(host, facts, libc=libc or (), machine=machine))]


def _described(host: Host, facts: Facts, *, libc: tuple[int, ...], machine: str) -> str:
    where = "in a container" if facts.in_container else "not in a container"
    return f"{_system(host)}, {_kernel(host)}, glibc {_dotted(libc)}, Python {facts.python}, {machine}, {where}"


def _system(host: Host) -> str:
    for line in (host.read_text("/etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return "Linux"


def _kernel(host: Host) -> str:
    return f"kernel {(host.read_text('/proc/sys/kernel/osrelease') or 'unknown').strip()}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


CHECK = Check(
    name="platform",
    group="system",
    proves="Architecture, glibc and Python match the wheels in the lock file.",
    look=look,
)
