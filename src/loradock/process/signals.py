"""Signals that end a process in order: heard from the first line of main, acted on at once or at the next safe point.

SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 raise KeyboardInterrupt where the main thread is, once. Inside `deferred()`
they are only noted, and the loop inside polls `requested()`; a second Ctrl-C, given a second later, ends that wait too.
What ends here may be an import, a download or a training run, so nothing is imported but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""`__main__` and the entrypoint name them, too. Slurm and Grid Engine send SIGUSR1 or SIGUSR2 before they kill."""
IMPATIENT_SECONDS = 1.0
PR_SET_PDEATHSIG = 1


@dataclass
class _Heard:
    """The first signal and when it came, and whether the code that runs now wants to be asked."""

    first: signal.Signals | None = None
    at: float = 0.0
    is_deferred: bool = False
    was_raised: bool = False


_heard = _Heard()


def install() -> None:
    """Hear the signals from now on; one that the caller had ignored (nohup, a shell's `&`) stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _hear)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the image's entrypoint lets them wait until here


def _hear(number: int, _: FrameType | None) -> None:
    moment = time.monotonic()
    is_impatient = number == signal.SIGINT and moment - _heard.at > IMPATIENT_SECONDS
    is_first = _heard.first is None
    if is_first:
        _heard.first, _heard.at = signal.Signals(number), moment
    if _heard.was_raised or (_heard.is_deferred and (is_first or not is_impatient)):
        return
    _heard.was_raised = True
    raise KeyboardInterrupt


def requested() -> str | None:
    """The name of the signal that asked this process to end, or None."""
    return _heard.first.name if _heard.first else None


def check() -> None:
    """Raise KeyboardInterrupt where a signal came, also one that somebody has swallowed since."""
    if _heard.first:
        _heard.was_raised = True
        raise KeyboardInterrupt


def settle() -> None:
    """From now on signals change nothing: how the process ends is decided, and what is left is to say so.

    They are ignored, since the interpreter's own end takes our handlers away, and would let one end it in their place.
    """
    _heard.was_raised = True
    for number in SIGNALS:
        if signal.getsignal(number) is _hear:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal is noted and not raised: the code polls `requested()` and ends at a safe point."""
    state, _heard.is_deferred = _heard.is_deferred, True
    try:
        yield
    finally:
        _heard.is_deferred = state


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Inside, signals wait: for starting processes that leave the group (`leave_group`) before one can reach them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def leave_group() -> None:
    """In a data worker: a process group of its own, so that a signal to the run's group ends the run in order.

    An init process passes SIGTERM to the whole group, and a terminal SIGINT; workers that die of it would bring the
    main process down in the middle of a step. The worker ends when its parent ends, however that was.
    """
    os.setpgid(0, 0)
    die_with_parent()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # also forgets one that came while signals were held
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; a parent that ended before is asked for here."""
    import multiprocessing  # where this is called it is there already; the first line of main need not wait for it

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        signal.raise_signal(signal.SIGKILL)
