"""Signals: raised at once, deferred, held while processes start; workers that a signal to the group leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loradock.process import signals

pytestmark = pytest.mark.thin(1)

BEGIN = """
import os, signal, sys, time
from loradock.process import signals
signals.install()
def say(text):
    print(text, flush=True)
"""
AT_ONCE = """
try:
    say("ready")
    time.sleep(30)
except KeyboardInterrupt:
    say("raised")
    time.sleep(0.5)  # a second signal does not disturb the tidying up
    say("tidied up after " + signals.requested())
"""
DEFERRED = """
with signals.deferred():
    say("ready")
    while not signals.requested():
        time.sleep(0.01)
    time.sleep(0.3)
    say("finished the step")
try:
    signals.check()
except KeyboardInterrupt:
    say("then raised")
"""
IMPATIENT = """
try:
    with signals.deferred():
        say("ready")
        time.sleep(30)
except KeyboardInterrupt:
    say("raised")
"""
HELD = """
try:
    with signals.held():
        say("ready")
        end = time.monotonic() + 1
        while time.monotonic() < end:
            time.sleep(0.05)
        say("not yet: " + str(signals.requested()))
except KeyboardInterrupt:
    say("raised")
"""
WORKER = """
try:
    with signals.held():
        worker = os.fork()
        if not worker:
            say("ready")
            time.sleep(0.8)  # the signal to the group comes now
            signals.leave_group()
            time.sleep(1.0)
            say("worker lives on")
            os._exit(0)
    os.waitpid(worker, 0)
except KeyboardInterrupt:
    say("main was told")
    os.waitpid(worker, 0)
"""
ORPHAN = """
worker = os.fork()
if not worker:
    signals.leave_group()
    say(str(os.getpid()))
    time.sleep(60)
time.sleep(60)
"""


def started(script: str, *, before: str = "") -> subprocess.Popen[str]:
    """The script in a session of its own, once it is ready (or has said its first line)."""
    command = [sys.executable, "-c", f"{before}\n{BEGIN}\n{script}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)
    assert process.stdout
    process.first = process.stdout.readline().strip()  # pyright: ignore[reportAttributeAccessIssue]
    return process


def said(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate(timeout=120)[0].splitlines()


@pytest.mark.parametrize("sent", signals.SIGNALS)
def test_a_signal_is_raised_once(sent: signal.Signals) -> None:
    process = started(AT_ONCE)
    process.send_signal(sent)
    time.sleep(0.2)
    process.send_signal(sent)
    assert said(process) == ["raised", f"tidied up after {sent.name}"]


def test_a_deferred_signal_waits_for_the_step_and_is_raised_when_asked() -> None:
    process = started(DEFERRED)
    for _ in range(3):  # the group and its init both pass it on
        process.send_signal(signal.SIGTERM)
    assert said(process) == ["finished the step", "then raised"]


def test_a_second_ctrl_c_a_second_later_does_not_wait() -> None:
    process = started(IMPATIENT)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)  # the same one, passed on twice
    time.sleep(1.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert said(process) == ["raised"]


def test_a_held_signal_comes_when_it_is_let_go() -> None:
    process = started(HELD)
    process.send_signal(signal.SIGTERM)
    assert said(process) == ["not yet: None", "raised"]


def test_a_signal_to_the_group_reaches_the_run_and_leaves_a_starting_worker_alone() -> None:
    process = started(WORKER)
    os.killpg(process.pid, signal.SIGTERM)
    assert said(process) == ["main was told", "worker lives on"]


def test_a_worker_ends_with_its_parent_also_when_that_is_killed() -> None:
    process = started(ORPHAN)
    worker = int(process.first)  # pyright: ignore[reportAttributeAccessIssue]
    process.kill()
    said(process)  # until the worker, too, has closed its end
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker lives on")


def test_what_the_caller_ignored_stays_ignored() -> None:
    process = started(AT_ONCE, before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert said(process)[-1] == "tidied up after SIGTERM"


def test_a_signal_inside_an_exec_of_an_import_ends_python_m_with_76_too(tmp_path: Path) -> None:
    """Python notes an interrupt that left such text, and would end with SIGINT although it was handled."""
    (tmp_path / "interrupted.py").write_text(
        "import signal\n"
        "from loradock import cli\n"
        "cli.cli = lambda **_: exec('signal.raise_signal(signal.SIGTERM)')\n"
        "cli.main()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 76, done.stderr


BURST = """
import os, signal, sys
NUMBERS = (signal.SIGINT, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)

def burst(*_, **__):
    for number in NUMBERS:
        os.kill(os.getpid(), number)
"""
FINDER = """
class Finder:
    def find_spec(self, name, *_):
        if name == "click":
            burst()
sys.meta_path.insert(0, Finder())
"""
MOMENTS = {
    "while modules are imported": (FINDER, 76),
    "in the command": ("from loradock import cli\ncli.cli = burst\n", 76),
    "when it was said how it ends": (
        "from loradock.process import termination_log\ntermination_log.write = burst\n",
        2,
    ),
    "at the interpreter's end": ("import atexit\natexit.register(burst)\n", 2),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_burst_of_signals_shows_no_traceback_and_changes_no_decided_code(tmp_path: Path, moment: str) -> None:
    prepared, code = MOMENTS[moment]
    program = f"{BURST}{prepared}import runpy\nsys.argv = ['loradock', '--vrsion']\n"
    program += "runpy.run_module('loradock', run_name='__main__', alter_sys=True)\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr


def test_a_signal_while_the_interpreter_ends_changes_no_decided_code() -> None:
    script = """
import sys, time
from loradock.process import signals

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

signals.install()
signals.settle()
late = Late()
print("ready", flush=True)
sys.exit(75)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
    assert process.returncode == 75
