"""Folders that a run writes to: where they lie, what is free there, and what is possible there."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from loradock.machine.answers import Attempt, Mount, Space
from loradock.machine.machine import Machine

PROBE_BYTES = 64 << 10
PROBE_PREFIX = ".loradock-probe-"
STALE_SECONDS = 86_400
SCRATCH_VARIABLES = ("TMPDIR", "TEMP", "TMP")
SCRATCH_FOLDERS = ("/tmp", "/var/tmp", "/usr/tmp", ".")
PROGRAM = b"#!/bin/sh\nexit 0\n"


class Folders(Machine):
    """File systems and folders, tried out for real. What is tried out leaves nothing behind."""

    def nearest(self, path: Path) -> Path:
        """The path itself where it exists, else the nearest of its parents that does."""
        return next(parent for parent in (path, *path.parents) if os.path.lexists(parent))

    def names(self, folder: str) -> tuple[str, ...]:
        """The names in a folder, sorted; () where it is missing or may not be read."""
        try:
            return tuple(sorted(os.listdir(folder)))
        except OSError:
            return ()

    def owner(self, path: Path) -> int:
        """The uid that the file or folder belongs to."""
        return path.stat().st_uid

    def may_write(self, folder: Path) -> bool:
        """True where this process may make files in the folder."""
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)

    def scratch_folders(self) -> tuple[Path, ...]:
        """Where temporary files may go, in the order in which Python's `tempfile` tries one after another."""
        folders = [self.environ.get(name) for name in SCRATCH_VARIABLES]
        return tuple(Path(os.path.abspath(folder)) for folder in (*folders, *SCRATCH_FOLDERS) if folder)

    def takes_files(self, folder: Path) -> bool:
        """True where a temporary file can be made and written; it leaves nothing behind."""
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"probe")
        except OSError:
            return False
        return True

    def modified_seconds(self, path: Path) -> float:
        """When the file was last changed, in seconds of the epoch."""
        return path.stat().st_mtime

    def size_bytes(self, path: Path) -> int:
        """Bytes of a file, or of the files directly in a folder; 0 where there is none."""
        try:
            files = list(path.iterdir()) if path.is_dir() else [path]
            return sum(file.stat().st_size for file in files if file.is_file())
        except OSError:
            return 0

    def space(self, folder: Path) -> Space | None:
        """What is free in an existing folder; None where it may not be asked."""
        try:
            status, device = os.statvfs(folder), os.stat(folder).st_dev
        except OSError:
            return None
        return Space(
            device=device,
            free_bytes=status.f_bavail * status.f_frsize,
            total_bytes=status.f_blocks * status.f_frsize,
            free_inodes=status.f_favail if status.f_files else None,
        )

    def mount(self, path: Path) -> Mount | None:
        """The mount that the path lies on, its links followed."""
        return holding(mounts(self.read_text("/proc/self/mountinfo") or ""), os.path.realpath(path))

    def try_storage(self, folder: Path) -> Attempt:
        """Write, fsync, rename and lock a file of 64 KiB in an existing folder."""

        def steps(private: Path) -> Iterator[tuple[str, Callable[[], object]]]:
            file = private / "written"
            yield "write", lambda: file.write_bytes(b"\x5a" * PROBE_BYTES)
            yield "fsync", lambda: _with_file(file, os.fsync)
            yield "lock", lambda: _with_file(file, _lock)
            yield "rename", lambda: file.rename(private / "renamed")

        return _tried(folder, steps)

    def try_executing(self, folder: Path) -> Attempt:
        """Start a program that lies in an existing folder, and map a file there as a shared object is mapped."""

        def steps(private: Path) -> Iterator[tuple[str, Callable[[], object]]]:
            file = private / "program"
            yield "write", lambda: _write_program(file)
            yield "start a program", lambda: subprocess.run([str(file)], check=False)
            yield "map a library", lambda: _with_file(file, _map_executable)

        return _tried(folder, steps)


def _tried(folder: Path, steps: Callable[[Path], Iterator[tuple[str, Callable[[], object]]]]) -> Attempt:
    """Each step in a private folder that is removed afterwards; what follows a failed write is not tried."""
    failed: dict[str, int] = {}
    _remove_stale(folder)
    try:
        private = Path(tempfile.mkdtemp(prefix=PROBE_PREFIX, dir=folder))
    except OSError as refusal:
        return Attempt(folder=str(folder), failed={"write": refusal.errno or 0})
    try:
        for name, step in steps(private):
            try:
                step()
            except OSError as refusal:
                failed[name] = refusal.errno or 0
                if name == "write":
                    break
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return Attempt(folder=str(folder), failed=failed)


def _remove_stale(folder: Path) -> None:
    """Private folders of this user that a process left when it was killed in them, more than a day ago."""
    # A folder that may not be listed, or whose entries go while it is, has none that we know of.
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PROBE_PREFIX) and entry.is_dir(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and status.st_mtime < time.time() - STALE_SECONDS:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _with_file(file: Path, use: Callable[[int], object]) -> None:
    number = os.open(file, os.O_RDWR)
    with contextlib.closing(os.fdopen(number, "r+b")):
        use(number)


def _lock(number: int) -> None:
    """flock (what loradock and Hugging Face's libraries use), then the lock of POSIX."""
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(number, fcntl.LOCK_UN)
    fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_program(file: Path) -> None:
    file.write_bytes(PROGRAM)
    file.chmod(0o700)


def _map_executable(number: int) -> None:
    mmap.mmap(number, len(PROGRAM), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()


def mounts(text: str) -> tuple[Mount, ...]:
    """The mounts that a /proc/PID/mountinfo lists, in its order."""
    mounts_found: list[Mount] = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, right = head.split(" "), tail.split(" ")
        if len(fields) > 5 and len(right) > 2:
            options = dict.fromkeys([*fields[5].split(","), *right[2].split(",")])
            mounts_found.append(
                Mount(point=_plain(fields[4]), kind=right[0], source=_plain(right[1]), options=tuple(options))
            )
    return tuple(mounts_found)


def holding(listed: tuple[Mount, ...], path: str) -> Mount | None:
    """The mount with the longest point above the path; of several on one point the last covers the others."""
    above = [mount for mount in listed if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")]
    longest = max((len(mount.point) for mount in above), default=0)
    return next((mount for mount in reversed(above) if len(mount.point) == longest), None)


def _plain(text: str) -> str:
    """Mountinfo writes white space and backslashes as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
