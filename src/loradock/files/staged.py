"""Output that appears whole or not at all, whatever ends the process that writes it.

It is written beside its place as `.NAME.staged`, flushed to the disk, and renamed. A lock beside it (`files/lock.py`)
says that nobody else is at it: so what a killed process left there is nobody's, and the next one removes it. Small
files that are written over again and again go by `atomic_io.replace`.

Two have a stage of their own. Checkpoints (`training/checkpoint/store.py`) are many in one folder, each with a manifest
and a fence against a second run before its rename. A cache is filled by several processes at once, none of which waits
for another: each has a private folder there, by `in_cache`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loradock.errors import UsageError
from loradock.files import atomic_io, lock
from loradock.files.system_errors import storage_error

STAGE, LOCK = ".staged-", "lock"
REMOVALS = 2
"""Of a private folder: a system call that fails once leaves the rest of it, until another process fills the cache."""
STALE_SECONDS = 24 * 3600
"""After which a private folder is removed whose lock says nothing."""


@contextmanager
def folder(output: Path) -> Iterator[Path]:
    """Inside, an empty folder; on a clean exit it becomes `output`, with the modes that the umask leaves.

    Raises UsageError where `output` exists and is no empty folder, Locked where another process writes it, DiskFull,
    NotWritable or StorageError; then nothing appears.
    """
    with _staged(output, is_folder=True, replaces=False) as place:
        place.mkdir()
        yield place


@contextmanager
def file(output: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Inside, the path of a file to write; on a clean exit it becomes `output`. Raises as `folder`.

    `replaces`: in the place of a file that is there, which is as it was where the new one is not whole.
    """
    with _staged(output, is_folder=False, replaces=replaces) as place:
        yield place


@contextmanager
def rewritten(output: Path) -> Iterator[Path]:
    """As `folder`, in the place of what is there, for who has a lock on what is around it: a run in its directory.

    An OSError comes out as it is.
    """
    place = _stage(output)
    atomic_io.clear(place)
    place.mkdir()
    try:
        yield place
        _flush(place)
    except BaseException:
        _drop(place)
        raise
    replaced = output.with_name(f".{output.name}.replaced")
    atomic_io.clear(replaced)
    if os.path.lexists(output):
        output.rename(replaced)
    place.rename(output)
    atomic_io.sync_folder(output.parent)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def in_cache(directory: Path) -> Iterator[Path]:
    """Inside, a private folder in a folder of a cache, to rename out of it what is whole; it is gone afterwards.

    What processes that were killed left so is removed first. Raises OSError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _sweep(directory)
    while True:
        place = directory / f"{STAGE}{uuid.uuid4().hex}"
        place.mkdir()
        # Another is begun where a sweep comes upon this one before it is locked.
        with contextlib.ExitStack() as around:
            try:
                lock_stream = around.enter_context((place / LOCK).open("wb"))
            except FileNotFoundError:
                continue
            if lock.take(lock_stream.fileno()) is False or not os.fstat(lock_stream.fileno()).st_nlink:
                continue
            try:
                yield place
            finally:
                for _ in range(REMOVALS):
                    shutil.rmtree(place, ignore_errors=True)
            return


def refuse_existing(output: Path, *, is_folder: bool = True) -> None:
    """UsageError where anything has that name; an empty folder is taken for a folder, but for one that is a mount."""
    if not os.path.lexists(output):
        return
    if output.is_mount():
        what = f"{output} is a mount point, and what is written appears as a whole"
        raise UsageError(what, hint=f"name another in it: {output / 'new'}")
    is_empty = output.is_dir() and not output.is_symlink() and not any(output.iterdir())
    if not (is_folder and is_empty):
        name = shlex.quote(str(output))
        raise UsageError(f"{output} already exists", hint=f"name a new one, or move this away: mv {name} {name}-old")


@contextmanager
def _staged(output: Path, *, is_folder: bool, replaces: bool) -> Iterator[Path]:
    place = _stage(output)
    try:
        if not replaces:
            refuse_existing(output, is_folder=is_folder)
        _make(output.parent)
        with lock.writing(output):
            if not replaces:
                refuse_existing(output, is_folder=is_folder)
            atomic_io.clear(place)
            try:
                yield place
                _flush(place)
                if not (replaces or is_folder):
                    refuse_existing(output, is_folder=False)  # a rename takes the place of any file
                place.rename(output)
                atomic_io.sync_folder(output.parent)
            except BaseException:
                _drop(place)
                raise
    except OSError as error:
        raise storage_error(error, output) from error


def _stage(output: Path) -> Path:
    return output.with_name(f".{output.name}.staged")


def _drop(place: Path) -> None:
    """Take away what was half written; the error that led here counts more than one from doing so."""
    with contextlib.suppress(OSError):
        atomic_io.clear(place)


def _make(directory: Path) -> None:
    """Make a folder and those above it, and flush their names."""
    if not directory.is_dir():
        _make(directory.parent)
        with contextlib.suppress(FileExistsError):  # another process made it, or a file is there: that is said later
            directory.mkdir()
        atomic_io.sync_folder(directory.parent)


def _flush(place: Path) -> None:
    """Flush a file, or a folder with all below it, and give files the mode that the umask leaves.

    safetensors writes 0600 whatever the umask. Links are left alone: what they lead to is somebody else's.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    below = sorted(place.rglob("*"), reverse=True) if place.is_dir() else ()  # what is in a folder before the folder
    for path in (*below, place):
        if path.is_symlink():
            continue
        if path.is_dir():
            atomic_io.sync_folder(path)
        else:
            path.chmod(0o666 & ~mask)
            atomic_io.sync_file(path)


def _sweep(directory: Path) -> None:
    """Remove what killed processes left in a cache."""
    for place in directory.glob(f"{STAGE}*"):
        with contextlib.suppress(OSError):
            place.rmdir()  # it has no lock yet, or none any more
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            if _is_left(place, stack):
                shutil.rmtree(place, ignore_errors=True)


def _is_left(place: Path, stack: contextlib.ExitStack) -> bool:
    """Whether nobody writes there any more; its lock is kept, so that nobody begins to until it is removed."""
    with contextlib.suppress(OSError):
        file = place / LOCK
        if stat.S_ISREG(file.lstat().st_mode):
            is_free = lock.take(stack.enter_context(file.open("rb")).fileno())
            if is_free is not None:
                return is_free
    return time.time() - place.stat().st_mtime > STALE_SECONDS
