"""The machine itself: what it is, its clock, its first process; and that a healthy one raises no alarm in no time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from env_check.conftest import Examine, Faults
from env_check.spoilt_machine import IN_CONTAINER, WITH_A_GPU, printed, shell

import loradock
from loradock.env_check.base import Intent
from loradock.env_check.system import CHECKS, clock, init, platform
from loradock.machine import Host
from loradock.machine.answers import ProcessOne

pytestmark = pytest.mark.thin(1)

SUSPECTS = ("HOME", "TMPDIR", "USER", "LOGNAME", "CC", "CACHE")
PLAN = Intent(output=Path("/runs"), cache=Path("/cache"), scratch=Path("/tmp"))
WAITS = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
ANSWERS = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
sys.exit(subprocess.call(sys.argv[1:]))
"""
REAPS = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
child = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
while (ended := os.wait())[0] != child:
    pass
sys.exit(os.waitstatus_to_exitcode(ended[1]))
"""


def as_children_of_first_process(program: str | None = None) -> list[str]:
    """The rest of the line in a new PID namespace: as PID 1, or started by a Python program that is."""
    try:
        subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as refusal:
        pytest.skip(f"no mount namespaces here: {refusal.stderr.decode().strip()}")
    first = [sys.executable, "-c", program] if program else []
    return ["unshare", "--pid", "--fork", "--mount-proc", *first]


def test_a_healthy_machine_raises_no_alarm_and_two_looks_agree(examined: Examine, tmp_path: Path) -> None:
    first, second = (examined("--only", "system", "--level", "quick", cwd=tmp_path) for _ in range(2))
    assert [each for each in first.content["findings"] if each["severity"] != "ok"] == []
    assert first.content["findings"] == second.content["findings"]
    assert set(first.content["seconds"]) == {check.name for check in CHECKS}
    assert not [each for each in first.content["findings"] if any(word in each["what"] for word in SUSPECTS)]


def test_a_first_process_that_no_sigterm_reaches_is_found(examined: Examine, faults: Faults) -> None:
    found = examined("--only", "init", within=as_children_of_first_process(WAITS), env=IN_CONTAINER)
    faults.seen("PID 1 is Python", made="real", finding=found.one("init"), check="init")
    waits = [*as_children_of_first_process(), "sh", "-c", '"$@"; exit $?', "sh"]
    found = examined("--only", "init", within=waits, env=IN_CONTAINER)
    faults.seen("PID 1 is a shell", made="real", finding=found.one("init"), check="init")


def test_a_first_process_that_keeps_the_dead_is_found_and_one_that_reaps_is_well(
    examined: Examine, faults: Faults
) -> None:
    found = examined("--only", "init", within=as_children_of_first_process(ANSWERS), env=IN_CONTAINER)
    faults.seen("PID 1 does not reap", made="real", finding=found.one("init"), check="init")
    found = examined("--only", "init", within=as_children_of_first_process(REAPS), env=IN_CONTAINER)
    assert found.one("init")["severity"] == "ok"
    assert found.content["seconds"]["init"] < 1


def test_a_clock_before_the_installed_files_is_found(examined: Examine, faults: Faults, tmp_path: Path) -> None:
    package = Path(loradock.__file__).parent
    shutil.copytree(package, tmp_path / "loradock", ignore=shutil.ignore_patterns("__pycache__", "base"))
    touch = f"touch -d 2060-01-01 {tmp_path}/loradock/__init__.py"
    found = examined("--only", "clock", within=shell(touch), cwd=tmp_path)
    faults.seen("the clock is behind", made="real", finding=found.one("clock"), check="clock")
    ahead = clock.judge(4e9, 1.8e9)
    seen = printed(clock.CHECK, ahead)
    faults.seen("the clock is decades ahead", made="constructed", finding=seen, check="clock")
    assert clock.judge(1.8e9, 1.8e9 + 3600).severity == "ok"


class Elsewhere(Host):
    """A machine without glibc, of another architecture, with another PID 1."""

    def __init__(self, *, glibc: tuple[int, ...] | None, machine: str, first: ProcessOne | None = None) -> None:
        self._answers = (glibc, machine, first)

    def glibc(self) -> tuple[int, ...] | None:
        return self._answers[0]

    def machine(self) -> str:
        return self._answers[1]

    def process_one(self) -> ProcessOne | None:
        return self._answers[2]


def test_platforms_that_no_wheel_is_built_for_are_refused(faults: Faults) -> None:
    for fault, glibc, machine in (
        ("no glibc (Alpine)", None, "x86_64"),
        ("an old glibc", (2, 17), "x86_64"),
        ("another architecture", (2, 36), "ppc64le"),
    ):
        (found,) = platform.look(Elsewhere(glibc=glibc, machine=machine), WITH_A_GPU, PLAN)
        faults.seen(fault, made="constructed", finding=printed(platform.CHECK, found), check="platform")
    for python, severity in (("3.10.4", "error"), ("3.13.1", "ok"), ("3.14.0", "warning")):
        facts = type(WITH_A_GPU)(**{**vars(WITH_A_GPU), "python": python})
        (found,) = platform.look(Elsewhere(glibc=(2, 36), machine="aarch64"), facts, PLAN)
        assert found.severity == severity


def test_a_first_process_that_is_no_run_of_ours_is_not_judged() -> None:
    for first in (None, ProcessOne(name="systemd-deaf", hears_sigterm=False)):
        (found,) = init.look(Elsewhere(glibc=(2, 36), machine="x86_64", first=first), WITH_A_GPU, PLAN)
        assert found.severity == "ok"
