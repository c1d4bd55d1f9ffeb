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
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loradock.checks.base import Check, Finding, Intent, error, warning
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
    """Run the checks that apply, in their order within a level; `progress` is told each as it ends."""
    machine = (host, facts, plan)
    looked: list[Looked] = []
    for method, chosen in (
        ("fork", [check for check in checks if check.level == "quick"]),
        ("spawn", [check for check in checks if check.level != "quick"]),
    ):
        for each in _in_children([check for check in chosen if check.applies(facts, plan)], machine, method):
            looked.append(each)
            if progress:
                progress(each)
    return looked


def _in_children(checks: Sequence[Check], machine: Machine, method: str) -> Iterator[Looked]:
    """Each check in the current child; a child that is lost is replaced."""
    child: Child | None = None
    try:
        for check in checks:
            child = child or Child(machine, method)
            began = time.monotonic()
            findings = child.look(check)
            if child.is_lost:
                child.close()
                child = None
            yield Looked(check=check, findings=findings, seconds=time.monotonic() - began)
    finally:
        if child:
            child.close()


class Child:
    """A process that looks for us."""

    def __init__(self, machine: Machine, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        self.is_lost = False
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, machine), daemon=False)
        self._redirected(self._process.start)
        theirs.close()

    def look(self, check: Check) -> tuple[Finding, ...]:
        """What the check finds; an error where it hangs, crashes or raises. Never raises itself."""
        try:
            self._pipe.send(check.name)
            if self._pipe.poll(check.limit_seconds):
                return self._pipe.recv()
        except (EOFError, OSError):
            return (self._died(check),)
        self.is_lost = True
        return (_hung(check),)

    def close(self) -> None:
        """End the child and all that it started; it holds nothing that could be lost."""
        self._pipe.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(int(self._process.pid or 0), signal.SIGKILL)
        self._process.kill()
        self._process.join(timeout=5)
        self._output.close()

    def _redirected(self, start: Callable[[], None]) -> None:
        """Start the child with our temporary file for its stdout and stderr."""
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        try:
            os.dup2(self._output.fileno(), 1)
            os.dup2(self._output.fileno(), 2)
            start()
        finally:
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)

    def _died(self, check: Check) -> Finding:
        self.is_lost = True
        self._process.join(timeout=5)
        code = self._process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        size = os.fstat(self._output.fileno()).st_size
        said = os.pread(self._output.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        return error(
            f"the check died with {how}: {last[:200]}",
            remedy=f"loradock env-check --only {check.name} --report",
        )


def _hung(check: Check) -> Finding:
    what = f"the check did not end within {check.limit_seconds:g} s"
    remedy = f"loradock env-check --only {check.name}"
    return error(what, remedy=remedy) if check.level != "quick" else warning(what, remedy=remedy)


def _serve(pipe: Connection, machine: Machine) -> None:
    """The child: look at what is asked for until nobody asks any more."""
    from loradock.checks import CHECKS

    os.setsid()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    by_name = {check.name: check for check in CHECKS}
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        pipe.send(_look(by_name[name], machine))


def _look(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(*machine))
    except Exception as failure:  # noqa: BLE001  a check that fails says so as a finding, and the others go on
        traceback.print_exc()
        first = (str(failure).strip().splitlines() or [""])[0][:200]
        place = traceback.extract_tb(failure.__traceback__)[-1]
        return (
            error(
                f"the check failed at {Path(place.filename).name}:{place.lineno}: {type(failure).__name__}: {first}",
                remedy=f"loradock env-check --only {check.name} --report",
            ),
        )
