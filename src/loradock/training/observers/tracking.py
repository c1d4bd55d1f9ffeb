"""The trackers of a run, from the trainer's side: each a process of its own, so that none of them holds up a step.

A tracker's library asks a server, and waits and tries again for minutes; at the end of a process its exit handlers wait
once more. Here nothing waits but `close`, for a limited time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loradock.process import signals
from loradock.process.python import command
from loradock.text import redact
from loradock.training.observers import trackers
from loradock.training.observers.tracker_process import LONGEST_MESSAGE

PATIENCE_SECONDS = 60.0
"""A tracker that has not answered for so long is told; and so long all are waited for at the end of a run at most."""
STOP_SECONDS = 5.0
"""The same after a signal: whoever sent it kills what is left, often after 30 s."""
POLL_SECONDS = 0.05
OF_RANKS = {"LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}
"""Variables by which accelerate would take the tracker's process for one of the ranks, and wait for the others."""
GOES_ON = "the run continues, and metrics.jsonl has every line"


class Tracker:
    """One tracker. What fails in it is told once, and at the end how many lines it lacks."""

    def __init__(self, name: str, *, directory: Path, project: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.lines, self.lost = 0, 0
        self.waiting = 1  # for the answer to what it was given; the opening is the first
        self.waits_since = time.monotonic()
        self.problem: str | None = None
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setblocking(False)
        what = {"name": name, "directory": str(directory), "project": project, "run": directory.name}
        with theirs, tempfile.TemporaryFile() as file:
            file.write(json.dumps({**what, "settings": settings}).encode())
            file.seek(0)
            self.process = subprocess.Popen(
                command("-m", "loradock.training.observers.tracker_process", str(theirs.fileno())),
                stdin=file,
                stdout=2,
                pass_fds=[theirs.fileno()],
                process_group=0,  # a signal to the run's group is the run's
                env={key: value for key, value in os.environ.items() if key not in OF_RANKS},
            )

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Hand over metrics of one optimiser step; names as in `train/loss`."""
        self.lines += 1
        if not self._give({"step": step, "values": values}):
            self.lost += 1

    def look(self) -> str | None:
        """The tracker's problem, where there is one and it was not told yet."""
        had = self.problem
        with suppress(BlockingIOError, ConnectionResetError):
            while message := self.channel.recv(LONGEST_MESSAGE):
                self._hear(json.loads(message))
        if self.problem is None and self.has_ended() and self.waiting:
            self.problem = f"the process of tracker {self.name} ended with {self.process.returncode}"
        elif self.problem is None and self.is_silent():
            self.problem = f"tracker {self.name} has not answered for {PATIENCE_SECONDS:.0f} s"
        return None if had else self.problem

    def has_ended(self) -> bool:
        """True once its process is gone."""
        return self.process.poll() is not None

    def is_silent(self) -> bool:
        """True where it should have answered long ago."""
        return self.waiting > 0 and time.monotonic() - self.waits_since > PATIENCE_SECONDS

    def end(self, status: str) -> None:
        """Ask it to flush and finish; `status` is how the run ended."""
        self._give({"end": status})

    def close(self) -> str | None:
        """End its process, where that still runs; returns what the tracker lacks, if anything."""
        if is_cut_off := not self.has_ended():
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.channel.close()
        lost = self.lost + min(self.waiting, self.lines - self.lost)
        if not lost and not is_cut_off:
            return None
        ended = f"tracker {self.name}" + (" did not finish in time, and" if is_cut_off else "")
        return f"{ended} lacks {lost} of {self.lines} metric lines; metrics.jsonl has all"

    def _give(self, message: dict[str, Any]) -> bool:
        """Send it; False where its process is gone or takes nothing."""
        try:
            self.channel.send(json.dumps(message).encode())
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        if not self.waiting:
            self.waits_since = time.monotonic()
        self.waiting += 1
        return True

    def _hear(self, message: dict[str, Any]) -> None:
        self.waiting -= 1
        self.waits_since = time.monotonic()
        self.lost += not message["is_taken"]
        self.problem = self.problem or message.get("problem")


class Tracking:
    """A context around a training: the trackers by name, open while it lasts. `note` shows a line of text."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        directory: Path,
        project: str,
        settings: Mapping[str, Any],
        note: Callable[[str], None],
    ) -> None:
        trackers.check(names)
        self.note = note
        self.trackers = [Tracker(name, directory=directory, project=project, settings=settings) for name in names]

    def __enter__(self) -> Self:
        return self

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Hand each tracker the metrics of a step."""
        for tracker in self.trackers:
            tracker.log(values, step=step)

    def look(self) -> None:
        """Tell of each tracker's problem, once."""
        for tracker in self.trackers:
            if problem := tracker.look():
                self.note(redact.without(f"warning: {problem}; {GOES_ON}", redact.of(os.environ)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self.trackers:
            tracker.end("failed" if kind else "finished")
        until = time.monotonic() + (STOP_SECONDS if signals.requested() else PATIENCE_SECONDS)
        while time.monotonic() < until and not all(each.has_ended() or each.is_silent() for each in self.trackers):
            self.look()
            time.sleep(POLL_SECONDS)
        self.look()
        for tracker in self.trackers:
            if lacking := tracker.close():
                self.note(f"warning: {lacking}")
