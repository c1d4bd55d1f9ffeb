"""Runs checks, each bounded in time and crashing alone.

They run in child processes, one after another: quick ones in a fork of this process, the others in a fresh one that
keeps the libraries it imports for the checks after. A child that dies or hangs costs the check it was at, and the rest
go on in another child. What a library prints there is shown only when its child dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loradock.checks.base import LEVELS, Check, Finding, Intent, Level, error, warning
from loradock.facts import Facts
from loradock.host import Host

QUIET = {"BITSANDBYTES_NOWELCOME": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_TELEMETRY": "1"}
TAIL_BYTES = 4000
Machine = tuple[Host, Facts, Intent]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A check that was run, what it found, and how long it took."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float


def run(
    checks: Sequence[Check],
    *,
    host: Host,
    facts: Facts,
    plan: Intent,
    progress: Callable[[Looked], None] | None = None,
) -> list[Looked]:
    """Run the checks that apply: quick ones, then those that compute, then measurements, which want a quiet machine.

    `progress` is told each as it ends.
    """
    machine = (host, facts, plan)
    looked: list[Looked] = []
    applying = [check for check in checks if check.applies(facts, plan)]
    for level in LEVELS:
        for each in _of_level([check for check in applying if check.level == level], machine, level):
            looked.append(each)
            if progress:
                progress(each)
    return looked


def _of_level(checks: Sequence[Check], machine: Machine, level: Level) -> Iterator[Looked]:
    """The checks one after another in one child, and each that may run beside them in one of its own."""
    method = "fork" if level == "quick" else "spawn"
    with contextlib.ExitStack() as children:
        beside = [
            (children.enter_context(contextlib.closing(Child(machine, method))), check)
            for check in checks
            if check.is_beside
        ]
        for child, check in beside:
            child.ask(check)
        yield from _in_turn([check for check in checks if not check.is_beside], machine, method)
        for child, _ in beside:
            yield child.answer()


def _in_turn(checks: Sequence[Check], machine: Machine, method: str) -> Iterator[Looked]:
    """Each check in the current child; one that is lost is replaced."""
    child: Child | None = None
    try:
        for check in checks:
            child = child or Child(machine, method)
            child.ask(check)
            yield child.answer()
            if child.is_lost:
                child.close()
                child = None
    finally:
        if child:
            child.close()


class Child:
    """A process that looks for us."""

    def __init__(self, machine: Machine, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self.is_lost = False
        self._output = os.memfd_create("loradock-env-check")  # on no disk: that one may be what is sick
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, machine), daemon=False)
        self._redirected(self._process.start)
        theirs.close()

    def ask(self, check: Check) -> None:
        """Let it begin with a check; its answer is fetched later."""
        self._check, self._began = check, time.monotonic()
        with contextlib.suppress(OSError):  # a child that is gone already: its answer says so
            self._pipe.send(check)

    def answer(self) -> Looked:
        """What the check found; an error where it hangs, crashes or raises. Never raises itself."""
        check = self._check
        left = self._began + check.limit_seconds - time.monotonic()
        try:
            findings = self._pipe.recv() if self._pipe.poll(max(0.0, left)) else None
        except (EOFError, OSError):
            self.is_lost, findings = True, (self._died(check),)
        if findings is None:
            self.is_lost, findings = (
                True,
                (_unanswered(check, f"the check did not end within {check.limit_seconds:g} s"),),
            )
        return Looked(check=check, findings=findings, seconds=time.monotonic() - self._began)

    def close(self) -> None:
        """End the child and all that it started; it holds nothing that could be lost."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(self._process.pid or 0), signal.SIGKILL)
        self._process.kill()
        self._process.join(timeout=5)
        os.close(self._output)

    def _redirected(self, start: Callable[[], None]) -> None:
        """Start the child with our temporary file for its stdout and stderr."""
        sys.stdout.flush()
        sys.stderr.flush()
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
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        size = os.fstat(self._output).st_size
        said = os.pread(self._output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        return error(
            f"the check died with {how}: {last[:200]}",
            remedy=f"loradock env-check --only {check.name} --report",
        )


def _unanswered(check: Check, what: str) -> Finding:
    """A quick check that fails us proves nothing; of a computation that fails us the run would have failed too."""
    remedy = f"loradock env-check --only {check.name} --report"
    return warning(what, remedy=remedy) if check.level == "quick" else error(what, remedy=remedy)


def _serve(pipe: Connection, machine: Machine) -> None:
    """The child: look at what is asked for until nobody asks any more."""
    os.setsid()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    while True:
        try:
            check = pipe.recv()
        except EOFError:
            return
        pipe.send(_look(check, machine))


def _look(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(*machine))
    except Exception as failure:  # noqa: BLE001  a check that fails says so as a finding, and the others go on
        traceback.print_exc()
        first = (str(failure).strip().splitlines() or [""])[0][:200]
        place = traceback.extract_tb(failure.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return (_unanswered(check, f"the check failed at {where}: {type(failure).__name__}: {first}"),)
