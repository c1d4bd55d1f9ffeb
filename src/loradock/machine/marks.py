"""Marks of files: what changes whenever a file does, without reading it.

The kernel sets the time of the last change (st_ctime) at every write, rename and chmod, and no program can set it. Of
a file that was changed within the last seconds a mark says nothing: a second change within the same tick of the clock
would not show.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Collection, Iterable
from typing import Any

SETTLED_NS = 2_000_000_000
"""Coarser than the clock of any file system that a virtual environment lies on."""
DAY_NS = 86_400 * 1_000_000_000
TRUSTED_NS = 7 * DAY_NS
"""After so long marks are not believed: what was proven by them is proven again by reading."""

Mark = list[int]


def is_settled(mark: Mark, *, at_ns: int) -> bool:
    """Whether the file was left alone for long enough before this time of the epoch."""
    return mark[-1] < at_ns - SETTLED_NS


def is_recent(then_ns: int) -> bool:
    """Whether marks of that time of the epoch are still believed; one of the future never was."""
    return 0 <= time.time_ns() - then_ns < TRUSTED_NS


def mark_of(path: str) -> Mark | None:
    """Device, inode, size and both times of a file, or of what a link leads to; None where it is not there."""
    try:
        return _mark(os.stat(path))
    except OSError:
        return None


def marks_of(paths: Iterable[str]) -> dict[str, Mark | None]:
    """{path: mark}, by path."""
    return {path: mark_of(path) for path in sorted(paths)}


def below(folder: str, *, without: Collection[str] = ()) -> str:
    """One digest of the names and marks of all files below a folder, links and what they lead to among them.

    Folders named as in `without` are left out. 80,000 files take half a second. Raises OSError, also for a file that
    was changed just now.
    """
    digest, began_ns = hashlib.sha256(), time.time_ns()
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        states: list[Any] = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in without:
                    waiting.append(entry.path)
                continue
            mark = _mark(entry.stat(follow_symlinks=False))
            if not is_settled(mark, at_ns=began_ns):
                raise BlockingIOError(errno.EAGAIN, "it was changed just now", entry.path)
            link = (os.readlink(entry.path), mark_of(entry.path)) if entry.is_symlink() else ()
            states.append((entry.path, mark, link))
        digest.update(repr(states).encode())
    return digest.hexdigest()


def content_below(folder: str) -> str:
    """One digest of the names and bytes of all files below a folder, but for byte-code. Raises OSError."""
    digest = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(place, name)
            with open(path, "rb") as stream:
                content = stream.read()
            digest.update(f"{os.path.relpath(path, folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _mark(status: os.stat_result) -> Mark:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
