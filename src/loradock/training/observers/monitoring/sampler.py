"""A thread that samples GPU and host every few seconds into `monitor.jsonl`, beside the training.

It is never in the way: what goes wrong ends it with one line, and the run goes on; a call that hangs hangs alone. The
file is bounded: where it has too many lines, every second one goes, so that a run of a week still shows as a whole.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loradock.files import atomic_io

FILE = "monitor.jsonl"
MOST_LINES = 20_000
KEPT_SAMPLES = 4_000
"""In memory, for alerts."""
PATIENCE_SECONDS = 2.0
"""How long the end of a run waits for a sample that is being taken."""

Source = Callable[[], Mapping[str, Any]]
"""What is known now, by name."""


class Sampler:
    """Use it as a context: it runs within. `seen` are the parts of a line that the training tells: step, data share.

    `open_sources` is called in the thread, since opening NVML can take a second; it returns the sources and what closes
    them. `problem` says why sampling ended early.
    """

    def __init__(
        self,
        directory: Path,
        *,
        every_seconds: float,
        open_sources: Callable[[], tuple[list[Source], Callable[[], None]]],
        fence: Callable[[], None] = lambda: None,
    ) -> None:
        self.file = directory / FILE
        self.every_seconds = every_seconds
        self.open_sources = open_sources
        self.fence = fence
        self.seen: dict[str, Any] = {}
        self.problem: str | None = None
        self.samples: deque[dict[str, Any]] = deque(maxlen=KEPT_SAMPLES)
        self.lines = 0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.work, name="monitor", daemon=True)

    def start(self) -> None:
        """Begin; the first sample comes after one interval."""
        self.thread.start()

    def stop(self) -> None:
        """End; a sample that hangs is left behind."""
        self.is_over.set()
        self.thread.join(PATIENCE_SECONDS)

    def latest(self) -> list[dict[str, Any]]:
        """The samples so far, the oldest first."""
        return [self.samples[index] for index in range(len(self.samples))]  # unlike iterating, safe beside an append

    def work(self) -> None:
        """What the thread does."""
        try:
            self.lines = self.counted()
            sources, close = self.open_sources()
            try:
                while not self.is_over.wait(self.every_seconds):
                    self.take(sources)
            finally:
                close()
        except Exception as error:  # noqa: BLE001  a run never ends for its monitoring
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End, and keep why."""
        self.is_over.set()
        self.problem = self.problem or f"monitoring ended: {type(error).__name__}: {error}"

    def take(self, sources: list[Source]) -> None:
        """One line."""
        line: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **self.seen}
        for source in sources:
            line |= source()
        if self.is_over.is_set():
            return
        self.fence()
        self.samples.append(line)
        self.write(json.dumps(line) + "\n")

    def write(self, text: str) -> None:
        """Append a line in one call, without a buffer that a forked worker could write once more."""
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
        self.lines += 1
        if self.lines > MOST_LINES:
            self.thin_out()

    def thin_out(self) -> None:
        """Every second line goes."""
        kept = self.file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[::2]
        atomic_io.replace(self.file, "".join(kept))
        self.lines = len(kept)

    def counted(self) -> int:
        """Lines that an earlier attempt at this run left."""
        try:
            with self.file.open("rb") as stream:
                return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
        except FileNotFoundError:
            return 0
