"""Ways to spoil this machine for one process: mounts, limits, cgroups, users; each is a command that runs the rest."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from env_check.conftest import namespace
from facts.recorded import machine

from loradock.env_check.base import Check, Finding, Intent
from loradock.facts import Facts
from loradock.machine import Host

WITH_A_GPU = machine("a10")
STRANGER = 123456
IN_CONTAINER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
"""Remedies differ in a container, and this machine may be one or not."""


def shell(script: str) -> list[str]:
    """A command that runs the rest of its line after `script`."""
    return ["sh", "-ec", f'{script}\nexec "$@"', "sh"]


def stranger(script: str = ":") -> list[str]:
    """The rest of the line as a uid without passwd entry or groups, after `script` as root in a mount namespace.

    The interpreter is made to be seen by all, wherever it lies.
    """
    if os.geteuid() != 0:
        pytest.skip("no mount namespaces here whose root may become another user")
    python = Path(sys.base_prefix)
    closed = [each for each in python.parents if each.stat().st_mode & 0o005 != 0o005]
    opened = ""
    if closed:
        opened = f"""
            mount --bind {python} /mnt
            mount -t tmpfs -o mode=755 none {closed[-1]}
            mkdir -p {python}
            mount --bind /mnt {python}
        """
    return [*namespace(f"{opened}\n{script}"), "setpriv", f"--reuid={STRANGER}", "--regid=0", "--clear-groups"]


@contextlib.contextmanager
def cgroup(controller: str, *, v2: str, v1: str, limit: int) -> Iterator[list[str]]:
    """A command that runs the rest of its line in a new cgroup below this process's own, with this limit."""
    made: Path | None = None
    for parent, file in _cgroup_parents(controller, v2=v2, v1=v1):
        place = parent / f"loradock-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            place.mkdir()
            made = place
            (place / file).write_text(str(limit), encoding="utf-8")
            break
    else:
        if made:
            made.rmdir()
        pytest.skip(f"no cgroups may be made here for {controller}")
    try:
        yield shell(f"echo $$ > {made}/cgroup.procs")
    finally:
        made.rmdir()


def _cgroup_parents(controller: str, *, v2: str, v1: str) -> Iterator[tuple[Path, str]]:
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            yield root / controller / path.lstrip("/"), v1
        elif not controllers:
            yield root / path.lstrip("/"), v2


def finding(check: Check, *, host: Host | None = None, facts: Facts = WITH_A_GPU, folder: Path) -> dict[str, object]:
    """The first finding of a check that looks at a constructed machine, as `env-check --json` would print it."""
    plan = Intent(output=folder / "runs", cache=folder / "cache", scratch=folder)
    return printed(check, check.look(host or Host(), facts, plan)[0])


def printed(check: Check, found: Finding) -> dict[str, object]:
    """A finding as `env-check --json` prints it."""
    keys = ("severity", "what", "remedy", "exit_code")
    return {"check": check.name, **{key: getattr(found, key) for key in keys}}


def limited(*options: str) -> Sequence[str]:
    """The rest of the line with these limits, as prlimit takes them."""
    return ["prlimit", *options]
