"""The watchdog: a thread that ends the process with 82 when training makes no progress, and the heartbeat file.

Each phase has its own limit: setting up may take an hour (a download), a micro-batch seconds, a save as long as the
storage needs. Time is counted by the thread itself, tick by tick, so that a process that was stopped, suspended or
starved is not taken for one that hangs. What the thread cannot end is native code that keeps the interpreter's lock:
then the heartbeat grows old, and whoever watches the container sees it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from loradock.errors import Hung, LoradockError
from loradock.process import streams

Phase = Literal["setup", "step", "save"]
DOING: dict[Phase, str] = {"setup": "setting up", "step": "training", "save": "saving"}
TICK_SECONDS = 0.5
LATE_SECONDS = 1.0
TOUCH_SECONDS = 1.0
LAST_WORDS_SECONDS = 10.0
STACKS_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The longest silence in each phase, in seconds. 0: no limit."""

    setup_seconds: float
    step_seconds: float
    save_seconds: float

    def of(self, phase: Phase) -> float:
        """The limit of a phase in seconds; 0 where it has none."""
        return {"setup": self.setup_seconds, "step": self.step_seconds, "save": self.save_seconds}[phase]


class Watchdog:
    """Watches from entering its context to leaving it; begins in the phase `setup`.

    `problem` says why the heartbeat file could not be written, once it could not; the run continues.
    """

    def __init__(self, limits: Limits, *, heartbeat: Path | None, on_hang: Callable[[LoradockError], None]) -> None:
        """`on_hang` writes the record of the run's end; it is called in a thread, for 10 s at most."""
        self.limits = limits
        self.problem: str | None = None
        self._heartbeat = heartbeat
        self._on_hang = on_hang
        self.phase: Phase = "setup"
        self.silent_seconds = 0.0
        self._has_beaten = True
        self._beside: Phase | None = None
        self._beside_seconds = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop at once. The heartbeat file goes: a container that lives on is not sick because its run ended."""
        self._is_over.set()
        self._thread.join()
        if self._heartbeat is not None:
            with contextlib.suppress(OSError):  # it is in a scratch directory; a stale one is seen as what it is
                self._heartbeat.unlink()

    def beat(self, phase: Phase | None = None) -> None:
        """Give a sign of life, and name the phase that begins with it; costs an attribute write."""
        self._has_beaten = True
        if phase is not None:
            self.phase = phase

    @contextlib.contextmanager
    def beside(self, phase: Phase) -> Iterator[None]:
        """Inside, in one thread beside the one that beats: all of it has the limit of this phase, without a beat."""
        self._beside, self._beside_seconds = phase, 0.0
        try:
            yield
        finally:
            self._beside = None

    def _watch(self) -> None:
        moment = touched = time.monotonic()
        is_untouched = False
        while not self._is_over.wait(TICK_SECONDS):
            current, phase = time.monotonic(), self.phase  # the phase first: a beat sets it last
            # A tick that came late counts as one: for the rest of that time this process did not run.
            passed_seconds, moment = current - moment, current
            passed_seconds = passed_seconds if passed_seconds < LATE_SECONDS else TICK_SECONDS
            self.silent_seconds += passed_seconds
            self._beside_seconds += passed_seconds
            if self._has_beaten:
                self._has_beaten, self.silent_seconds, is_untouched = False, 0.0, True
            if is_untouched and current - touched >= TOUCH_SECONDS:
                self._touch()
                touched, is_untouched = current, False
            if 0 < self.limits.of(phase) < self.silent_seconds:
                self.end(self._hung(phase, self.silent_seconds))
            beside = self._beside
            if beside and 0 < self.limits.of(beside) < self._beside_seconds:
                self.end(self._hung(beside, self._beside_seconds))

    def _touch(self) -> None:
        try:
            if self._heartbeat is not None:
                self._heartbeat.touch()
        except OSError as error:
            self.problem = f"the heartbeat file {self._heartbeat} cannot be written: {error.strerror}"

    def _hung(self, phase: Phase, silent_seconds: float) -> Hung:
        limit = self.limits.of(phase)
        return Hung(
            f"no progress for {silent_seconds:.0f} s while {DOING[phase]} (limit {limit:g} s)",
            hint="stderr has the stack traces; the same command continues from the last checkpoint "
            f"(--set limits.{phase}_seconds={limit * 2:g} waits longer)",
        )

    def end(self, error: LoradockError, *, has_stacks: bool = True) -> None:
        """From a thread: say why, and where every thread stands; let the run write its end, end workers and process."""
        show = show_stacks if has_stacks else show_error
        threads = [threading.Thread(target=work, args=(error,), daemon=True) for work in (show, self._on_hang)]
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        os._exit(error.exit_code)


def show_error(error: LoradockError) -> None:
    """Write the error to stderr."""
    streams.write_stderr(f"{error}\n".encode())


def show_stacks(error: LoradockError) -> None:
    """Write the error and the stacks of all threads to stderr."""
    # By way of memory: faulthandler keeps the interpreter's lock while it writes, and stderr may be what hangs.
    with open(os.memfd_create("stacks"), "w+b") as stacks:
        faulthandler.dump_traceback(stacks, all_threads=True)
        text = os.pread(stacks.fileno(), STACKS_BYTES, 0)
    streams.write_stderr(f"{error}\n".encode() + text)


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on, from /proc."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                stat = Path("/proc", entry, "stat").read_text(encoding="utf-8", errors="replace")
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    pids = [pid]
    for parent in pids:
        pids += [child for child, its_parent in parents.items() if its_parent == parent]
    return pids[1:]
