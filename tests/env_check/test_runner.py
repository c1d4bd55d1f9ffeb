"""The runner: a check that crashes, hangs or raises costs itself alone, and nothing that it prints reaches us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from env_check import sick
from facts.recorded import machine

from loradock.env_check.base import Check, Intent, Level
from loradock.env_check.child import Looked, answered
from loradock.env_check.runner import run
from loradock.errors import EnvironmentUnfit
from loradock.machine import Host

pytestmark = pytest.mark.thin(2)

LEVELS: tuple[Level, ...] = ("quick", "compute")


def looked(*checks: Check, folder: Path) -> list[Looked]:
    plan = Intent(output=folder / "pid", cache=folder, scratch=folder)
    return run(checks, host=Host(), facts=machine(), plan=plan)


@pytest.mark.parametrize("level", LEVELS)
def test_a_check_that_crashes_says_how_and_the_next_ones_run_in_another_process(level: Level, tmp_path: Path) -> None:
    well, crash = sick.check(sick.well, level=level), sick.check(sick.crash, level=level)
    before, died, after, again = looked(well, crash, well, well, folder=tmp_path)
    assert died.findings[0].severity == "error"
    assert "died with signal SIGKILL: the last words" in died.findings[0].what
    assert before.findings != after.findings == again.findings


@pytest.mark.parametrize("level", LEVELS)
def test_a_check_that_ends_its_process_is_found(level: Level, tmp_path: Path) -> None:
    (left,) = looked(sick.check(sick.leave, level=level), folder=tmp_path)
    assert "died with exit code 3" in left.findings[0].what


@pytest.mark.parametrize(("level", "severity"), [("quick", "warning"), ("compute", "error")])
def test_a_check_that_hangs_ends_at_its_limit_with_all_that_it_started(
    level: Level, severity: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    hung, after = looked(
        sick.check(sick.hang, level=level, limit_seconds=2), sick.check(sick.well, level=level), folder=tmp_path
    )
    assert hung.findings[0].severity == severity
    assert "did not end within 2 s" in hung.findings[0].what
    assert after.findings[0].severity == "ok"
    assert time.monotonic() - began < 60
    status = Path("/proc", (tmp_path / "pid").read_text(encoding="utf-8"), "status")
    deadline = time.monotonic() + 60
    while status.exists() and "Z (zombie)" not in status.read_text(encoding="utf-8") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or "Z (zombie)" in status.read_text(encoding="utf-8")


@pytest.mark.parametrize("level", LEVELS)
def test_a_check_has_the_allocator_of_a_training(level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    (look,) = looked(sick.check(sick.allocator, level=level), folder=tmp_path)
    assert look.findings[0].what == "expandable_segments:True"


@pytest.mark.parametrize("level", LEVELS)
def test_seconds_in_which_a_check_reads_files_do_not_count(level: Level, tmp_path: Path) -> None:
    (slow,) = looked(sick.check(sick.read, level=level, limit_seconds=5), folder=tmp_path)
    assert slow.findings[0].what == "all was read"
    assert slow.seconds > 6


@pytest.mark.parametrize("level", LEVELS)
def test_a_check_that_breaks_is_undecided_with_its_place_and_what_to_report(level: Level, tmp_path: Path) -> None:
    failed, after = looked(sick.check(sick.fail, level=level), sick.check(sick.well, level=level), folder=tmp_path)
    (found,) = failed.findings
    assert (found.severity, found.remedy) == ("warning", "loradock env-check --only fail --report")
    assert found.what.startswith("undecided: the check itself failed at sick.py:")
    assert found.what.endswith("ValueError: seven; please report it")
    assert after.findings[0].severity == "ok"


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_printed_in_a_check_stays_there(
    level: Level, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (spoke,) = looked(sick.check(sick.speak, level=level), folder=tmp_path)
    assert spoke.findings[0].what == "spoke"
    assert capfd.readouterr() == ("", "")


def test_long_checks_run_beside_the_others_and_are_told_last(tmp_path: Path) -> None:
    beside = sick.check(sick.slow, level="compute", is_beside=True)
    began = time.monotonic()
    both = looked(beside, sick.check(sick.slow, level="compute"), folder=tmp_path)
    took = time.monotonic() - began
    assert [each.check.is_beside for each in both] == [False, True]
    assert all(each.findings[0].severity == "ok" for each in both)
    assert took < sum(each.seconds for each in both)


def test_a_finding_is_one_line_and_has_a_remedy_unless_it_is_ok() -> None:
    from loradock.env_check.base import error, ok, warning

    for wrong in (lambda: ok("two\nlines"), lambda: warning("no remedy", remedy=""), lambda: error("", remedy="none")):
        with pytest.raises(ValueError, match="one line"):
            wrong()


def test_what_the_parent_itself_has_to_know_is_asked_in_a_child_too() -> None:
    assert answered(lambda: 42, limit_seconds=10, what="it") == 42
    for never in (lambda: time.sleep(60), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        with pytest.raises(EnvironmentUnfit, match="it does not answer within 1 s"):
            answered(never, limit_seconds=1, what="it")


def test_a_machine_that_starts_no_process_is_told_with_a_remedy(tmp_path: Path) -> None:
    script = f'ulimit -n 14; exec "{sys.executable}" -m loradock env-check --only processors'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, EnvironmentUnfit.exit_code), done.stderr


HANGS = """
import sys
from pathlib import Path
from env_check import sick
from facts.recorded import machine
from loradock.env_check.base import Intent
from loradock.env_check.runner import run
from loradock.machine import Host
folder = Path(sys.argv[1])
plan = Intent(output=folder / "pid", cache=folder, scratch=folder)
run([sick.check(sick.hang, level=sys.argv[2])], host=Host(), facts=machine(), plan=plan)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_child_ends_with_the_process_that_asks_it_even_by_sigkill(level: Level, tmp_path: Path) -> None:
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    process = subprocess.Popen([sys.executable, "-c", HANGS, str(tmp_path), level], env=environment)
    deadline = time.monotonic() + 60
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    sleeper = int(pid.read_text(encoding="utf-8"))
    child = int(Path(f"/proc/{sleeper}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    try:
        process.kill()
        process.wait()
        while is_alive(child) and time.monotonic() < deadline + 60:
            time.sleep(0.05)
        assert not is_alive(child)
    finally:
        os.kill(sleeper, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
