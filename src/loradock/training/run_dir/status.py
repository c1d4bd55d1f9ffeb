"""`DIR/status.json`: where the run is now, for whoever waits for it (a wrapper whose launcher flattens exit codes)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loradock.text import redact

STATUS = "status.json"
STATES = ("setup", "training", "evaluating", "saving", "exporting", "finished", "interrupted", "failed")
PARTS = ("state", "step", "total_steps", "last_checkpoint", "loss", "exit_code", "reason")
TELLING = ("state", "last_checkpoint", "exit_code", "reason")
EVERY_SECONDS = 1.0
PATIENCE_SECONDS = 2.0


class Status:
    """Keeps status.json of one run; a process other than rank 0 has one that writes nothing.

    The file is put in place by rename, so that a reader never sees half of it. It is no part of what a run promises
    to keep: it is not flushed to the disk, and where it cannot be written `problem` says why and the run goes on.
    """

    def __init__(self, directory: Path, *, run_id: str, is_writing: bool) -> None:
        self.problem: str | None = None
        self._file = directory / STATUS
        self._staged = directory / f".{STATUS}"  # one name, as there is one writer: a killed one leaves no second
        self._is_writing = is_writing
        self._written = -math.inf
        self._one_at_a_time = threading.Lock()
        self._content: dict[str, Any] = {
            "run_id": run_id,
            "state": "setup",
            **dict.fromkeys(PARTS[1:]),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }

    def put(self, *, now: bool = False, **parts: Any) -> str | None:
        """Take in `parts` (of PARTS) and write the file: once a second at most, but a change of TELLING parts at once.

        `now` writes in any case. Returns the problem when there is one for the first time. TypeError for a part that
        nobody knows, ValueError for such a state.
        """
        if unknown := parts.keys() - set(PARTS):
            raise TypeError(f"status.json has no {', '.join(sorted(unknown))}")
        if parts.get("state", "setup") not in STATES:
            raise ValueError(f"no state of a run: {parts['state']}")
        parts = {name: _plain(value) for name, value in parts.items()}
        is_telling = any(name in parts and parts[name] != self._content[name] for name in TELLING)
        self._content = {**self._content, **parts}
        is_due = time.monotonic() - self._written >= EVERY_SECONDS
        if not self._is_writing or not (now or is_telling or is_due):
            return None
        return self._write()

    def _write(self) -> str | None:
        # The watchdog's thread writes a run's end while the main thread may hang in here.
        if not self._one_at_a_time.acquire(timeout=PATIENCE_SECONDS):
            return self._first(f"{self._file} is being written since more than {PATIENCE_SECONDS:g} s")
        try:
            self._written = time.monotonic()
            content = {**self._content, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
            self._staged.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            self._staged.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                self._staged.unlink()
            return self._first(f"{self._file} cannot be written: {error.strerror}")
        finally:
            self._one_at_a_time.release()
        return None

    def _first(self, problem: str) -> str | None:
        is_first, self.problem = self.problem is None, self.problem or problem
        return problem if is_first else None


def _plain(value: Any) -> Any:
    """The value as JSON has it: a number that JSON has not (nan, inf) and anything else as text, without secrets."""
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if value is None or is_number else redact.without(str(value), redact.of(os.environ))
