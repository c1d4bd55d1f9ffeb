"""A process of its own for checks: it may crash or hang, and what a library prints there stays there."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from loradock.env_check.base import Check, Finding, Intent, error, warning
from loradock.env_check.broken import broken
from loradock.errors import EnvironmentUnfit
from loradock.facts import Facts
from loradock.machine import Host, patience
from loradock.machine.library_variables import of_a_training
from loradock.process import signals

QUIET = {
    "BITSANDBYTES_NOWELCOME": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
CANNOT_START = 255
TAIL_BYTES = 4000
Machine = tuple[Host, Facts, Intent]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A check that was run, what it found, and how long it took."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float


def of_a_check(machine: Machine) -> dict[str, str]:
    """The environment of a check: that of a training, so that `train` computes under what `env-check` proved."""
    host, _, plan = machine
    deterministic = plan.config.deterministic if plan.config else False
    return of_a_training({**QUIET, **host.environ}, deterministic=deterministic)


class Child:
    """A process that looks for us."""

    def __init__(self, machine: Machine, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self.is_lost = False
        self._output = os.memfd_create("loradock-env-check")  # on no disk: that one may be what is sick
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, machine), daemon=False)
        try:
            _start(lambda: self._redirected(self._process.start))
        except BaseException:
            self.close()
            raise
        theirs.close()

    def ask(self, check: Check) -> None:
        """Let it begin with a check; its answer is fetched later."""
        self._check, self._began = check, time.monotonic()
        self._read = patience.bytes_read(self._process.pid)
        with contextlib.suppress(OSError):  # a child that is gone already: its answer says so
            self._pipe.send(check)

    def answer(self) -> Looked:
        """What the check found; an error where it hangs, crashes or raises."""
        check = self._check
        try:
            if self._has_answered():
                findings = self._pipe.recv()
            else:
                self.is_lost = True
                findings = (_unanswered(check, f"the check did not end within {check.limit_seconds:g} s"),)
        except (EOFError, OSError):
            self.is_lost, findings = True, (self._died(check),)
        return Looked(check=check, findings=findings, seconds=time.monotonic() - self._began)

    def _has_answered(self) -> bool:
        """Whether it answers within its limit."""
        limit, passed = self._check.limit_seconds, time.monotonic() - self._began
        remaining = limit - patience.counted(passed, pid=self._process.pid, since=self._read)
        return patience.answers(self._pipe.poll, pid=self._process.pid, left=remaining, limit_seconds=limit)

    def close(self) -> None:
        """End the child and all that it started; it holds nothing that could be lost."""
        self._pipe.close()
        _end(self._process)
        os.close(self._output)

    def _redirected(self, start: Callable[[], None]) -> None:
        """Start the child with our temporary file for its stdout and stderr."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # closed by whoever started us
                stream.flush()
        saved = os.dup(1), os.dup(2)
        try:
            os.dup2(self._output, 1)
            os.dup2(self._output, 2)
            start()
        finally:
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)

    def _died(self, check: Check) -> Finding:
        self._process.join(timeout=5)
        code = self._process.exitcode
        if code == CANNOT_START:
            what = f"{sys.executable} cannot be started again by uid {os.geteuid()}"
            return error(what, remedy=f"chmod a+rx {sys.executable}")
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        size = os.fstat(self._output).st_size
        tail = os.pread(self._output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "no output")
        return error(f"the check died with {how}: {last[:200]}", remedy=_report(check))


def _unanswered(check: Check, what: str) -> Finding:
    """A quick check that hangs proves nothing; where a computation hangs, the run would hang too."""
    return (warning if check.level == "quick" else error)(what, remedy=_report(check))


def _report(check: Check) -> str:
    return f"loradock env-check --only {check.name} --report"


def _serve(pipe: Connection, machine: Machine) -> None:
    """The child: look at what is asked for until nobody asks any more."""
    os.setsid()
    signals.die_with_parent()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)  # held while this process was started
    os.environ.update(of_a_check(machine))
    while True:
        try:
            check = pipe.recv()
        except EOFError:
            return
        pipe.send(_look(check, machine))


def _look(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(*machine))
    except Exception as failure:  # noqa: BLE001  a check that fails says so as a finding, and the others continue
        traceback.print_exc()
        return (broken(failure, where="", remedy=_report(check)),)


def answered(work: Callable[[], T], *, limit_seconds: float, what: str) -> T:
    """What `work` returns, done in a child so that it may hang; EnvironmentUnfit where it does, `what` its subject."""
    context: Any = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(work()), daemon=False)
    try:
        _start(process.start)
        theirs.close()
        if pipe.poll(limit_seconds):
            return pipe.recv()
    except (EOFError, OSError):
        pass  # said below: it died
    finally:
        pipe.close()
        _end(process)
    raise EnvironmentUnfit(f"{what} does not answer within {limit_seconds:g} s", hint="sudo dmesg | tail -50")


def _start(start: Callable[[], None]) -> None:
    """Start a process; a signal waits meanwhile, because what it raises in a handler of a fork is lost."""
    try:
        with signals.held():
            start()
    except OSError as failure:
        what = f"no further process can be started: {failure.strerror}"
        hint = "raise ulimit -u and ulimit -n; in a container: docker run --pids-limit -1 ..."
        raise EnvironmentUnfit(what, hint=hint) from failure


def _end(process: Any) -> None:
    """End a child and all that it started; one that the kernel holds on to is not waited for, at exit neither."""
    if process.pid is None:  # it never started
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(timeout=5)
    if process.is_alive():
        multiprocessing.process._children.discard(process)  # pyright: ignore[reportAttributeAccessIssue]
