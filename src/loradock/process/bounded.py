"""Python code that came with a file, as chat templates do, run in this process within limits of time and memory.

It runs for every row, in microseconds; a library that could abort goes into a process of its own, by `apart.py`.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.2
"""CPU seconds of the process between two looks at how many of them are this thread's."""
STATM = "/proc/self/statm"


class TooMuch(Exception):
    """Time or memory ran out; says which."""


class _Stop(BaseException):
    """Goes through every `except Exception` of the code that has to stop."""


@contextmanager
def bounded(*, seconds: float, more_bytes: int) -> Iterator[None]:
    """Inside, this thread may use that much CPU time, and the process that much more memory; else TooMuch.

    The time is a signal's, so it only ends in the main thread, and only where Python looks for signals: between its
    instructions, and within products of long numbers. What is allocated at once is refused by the memory limit.
    """
    with _time(seconds), _memory(more_bytes):
        try:
            yield
        except _Stop:
            raise TooMuch(f"more than {seconds:.3g} s of CPU time") from None
        except MemoryError:
            raise TooMuch(f"more than {more_bytes >> 20:,} MiB of memory") from None


_deadlines: list[float] = []
"""Of this thread's CPU time, the innermost last."""


def _look(*_: object) -> None:
    if _deadlines and time.thread_time() > _deadlines[-1]:
        raise _Stop


@contextmanager
def _time(seconds: float) -> Iterator[None]:
    """The handler stays where it is: a row is bounded in microseconds, and a signal that comes late does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGVTALRM) is not _look:
        signal.signal(signal.SIGVTALRM, _look)
    _deadlines.append(time.thread_time() + seconds)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, LOOK_SECONDS, LOOK_SECONDS)
        yield
    finally:
        _deadlines.pop()
        if not _deadlines:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def _memory(more_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space_bytes() + more_bytes
    if soft != resource.RLIM_INFINITY and soft <= most:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    handle = os.open(STATM, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(handle, 128).split()[0]) * resource.getpagesize()
    finally:
        os.close(handle)
