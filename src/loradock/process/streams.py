"""stdout and stderr that never end a run: what nobody reads any more is dropped, and `lost()` says so.

A pipe whose reader ended (`| head`, a log collector that died), a full disk behind a redirection, a closed descriptor:
the first write that fails puts /dev/null in the stream's place, for native code as well. A reader that stands still is
waited for a while; after that, lines are dropped until it reads again. At a command's end
`lost_result()` says whether what it printed arrived.

Text on stderr, and on a stdout that is a terminal, goes through `text.shown`: names, records and answers come from
outside, and a terminal obeys what it is sent. Secrets are left out on stderr. Into a file or pipe stdout writes what is
printed, since that is data. Who styles text has shown it before, and writes to `styled`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
import threading
from typing import Any

from loradock.errors import DiskFull, StorageError
from loradock.text import redact
from loradock.text.terminal import shown

PATIENCE_SECONDS = 10.0
PIPE_BYTES = 4096
"""A pipe that is writable takes this much without blocking (PIPE_BUF of pipe(7))."""
NAMES = {1: "stdout", 2: "stderr"}

_lost: dict[str, OSError] = {}
_result_lies_elsewhere = threading.Event()


def lost() -> dict[str, str]:
    """Each stream of which something could not be written, and why."""
    return {name: str(error.strerror) for name, error in _lost.items()}


def lost_result() -> StorageError | DiskFull | None:
    """What kept stdout from taking all that was printed; None where its reader ended (`| head`): it had enough."""
    sys.stdout.flush()
    error = None if _result_lies_elsewhere.is_set() else _lost.get(NAMES[1])
    if error is None or isinstance(error, BrokenPipeError):
        return None
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    what = f"what was printed is not complete: writing to stdout failed: {error.strerror}"
    return kind(what, hint="free space where stdout goes, or send it elsewhere, and run the same command again")


def result_lies_elsewhere() -> None:
    """What this command prints is a summary of what it keeps in files: losing it is no failure."""
    _result_lies_elsewhere.set()


def install() -> None:
    """Take the place of sys.stdout and sys.stderr; a descriptor that was closed (`2>&-`) becomes /dev/null."""
    for number in (0, *NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _text(1, before=sys.stdout)
    sys.stderr = _text(2, before=sys.stderr)


def for_people(text: str, *, stderr: bool) -> str:
    """The text as it may be seen on a terminal; on stderr, where messages are, without the secrets in it."""
    return shown(redact.without(text, redact.of(os.environ)) if stderr else text)


def styled(*, stderr: bool = False) -> Any:
    """The stream for one who has shown each text himself, and adds the terminal's own sequences to it."""
    stream = sys.stderr if stderr else sys.stdout
    stream = getattr(stream, "rich_proxied_file", stream)  # while rich moves a bar, it stands before the stream
    return _Styled(stream) if isinstance(stream, _Shown) else stream


def write_stderr(text: bytes) -> None:
    """Write past Python's buffers, from any thread; what cannot be written is dropped."""
    _Stream(2).write(text)


def _text(number: int, *, before: Any) -> io.TextIOWrapper:
    """A text stream as Python's own; `before` is that one, None where the descriptor was closed."""
    encoding = before.encoding if before else "utf-8"
    if before:
        before.flush()
    by_lines = number == 2 or os.isatty(number)
    kind = _Shown if by_lines else io.TextIOWrapper
    raw = io.BufferedWriter(_Stream(number))
    return kind(raw, encoding=encoding, errors="backslashreplace", line_buffering=by_lines)


class _Shown(io.TextIOWrapper):
    """A text stream for people; a line that a progress bar begins anew may begin with a carriage return."""

    def write(self, text: str, /) -> int:
        start = "\r" if text.startswith("\r") else ""
        super().write(start + for_people(text.removeprefix(start), stderr=self.fileno() == 2))
        return len(text)


class _Styled:
    """Such a stream, to which each text is written as it is."""

    def __init__(self, stream: _Shown) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return io.TextIOWrapper.write(self._stream, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Stream(io.RawIOBase):
    """A standard stream's descriptor. A write takes all it is given: what cannot be written is dropped and noted."""

    is_stuck = False

    def __init__(self, number: int) -> None:
        self.number = number

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.number

    def isatty(self) -> bool:
        return os.isatty(self.number)

    def write(self, data: Any, /) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        try:
            while remaining and self._is_ready():
                with contextlib.suppress(BlockingIOError):  # a descriptor that others share may be non-blocking
                    remaining = remaining[os.write(self.number, remaining[:PIPE_BYTES]) :]
        except OSError as error:
            _lost[NAMES[self.number]] = error
            _drop(self.number)
        return size

    def _is_ready(self) -> bool:
        """Whether a write would not block for ever."""
        if stat.S_ISREG(os.fstat(self.number).st_mode):
            return True
        poll = select.poll()
        poll.register(self.number, select.POLLOUT)
        events = poll.poll(0 if self.is_stuck else PATIENCE_SECONDS * 1000)
        self.is_stuck = not events
        if self.is_stuck:
            what = f"its reader did not read for {PATIENCE_SECONDS:.0f} s"
            _lost[NAMES[self.number]] = TimeoutError(errno.ETIMEDOUT, what)
        return not self.is_stuck


def _drop(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number)
    os.close(nowhere)
