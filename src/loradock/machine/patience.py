"""How long a process is waited for: seconds in which it reads files do not count, since a slow disk is no hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

TICK_SECONDS = 1.0
BUSY_BYTES = 1 << 18
"""Read in a tick by a process that is busy with files; one that waits reads a status now and then."""
SLOW_DISK = 10
"""Times its limit that a process is waited for which goes on reading files."""


def answers(has_answered: Callable[[float], bool], *, pid: int | None, left: float, limit_seconds: float) -> bool:
    """Whether the process `pid` answers before `left` of its limit is spent; `has_answered` waits so many seconds."""
    until = time.monotonic() + left + (SLOW_DISK - 1) * limit_seconds
    read = bytes_read(pid)
    while left > 0 and time.monotonic() < until:
        seconds = min(TICK_SECONDS, left)
        if has_answered(seconds):
            return True
        progress, read = read, bytes_read(pid)
        if read - progress < BUSY_BYTES:
            left -= seconds
    return has_answered(0)


def counted(seconds: float, *, pid: int | None, since: int) -> float:
    """Of seconds in which nobody looked: all, or none where the process read files; `since` are its bytes before."""
    return 0.0 if bytes_read(pid) - since >= BUSY_BYTES * seconds / TICK_SECONDS else seconds


def bytes_read(pid: int | None) -> int:
    """What a process and its descendants have read so far, by calls and through mappings (proc_pid_io(5))."""
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="utf-8")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:  # it ended, or this kernel does not tell: then the limit alone counts
        return 0
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["rchar"]) + int(counts["read_bytes"]) + sum(bytes_read(int(child)) for child in children)
