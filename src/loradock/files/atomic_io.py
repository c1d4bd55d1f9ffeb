"""Files that outlive a power cut: written whole, flushed to the disk, and put in place by rename.

Every OSError comes out as it is; `system_errors.storage_error` makes of it what a person reads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
LARGE_BYTES, BLOCK_BYTES = 1 << 20, 16 << 20
"""From which on a part is hashed in a thread beside its writing, and the most that is written at once so."""
OF_THE_FILE_SYSTEM = {"lost+found", ".snapshot", ".snapshots", ".zfs"}
"""What lies in the root of a new volume: of ext4, NetApp, Btrfs tools and ZFS."""
Content = bytes | memoryview | Callable[["Sink"], object]


class Sink:
    """A file that is being written from front to back. Small parts are put together; large ones are hashed beside.

    A part of LARGE_BYTES or more has to stay as it is until the whole file is written.
    """

    def __init__(self, descriptor: int, hashing: Executor) -> None:
        self.size_bytes = 0
        self._descriptor, self._hashing = descriptor, hashing
        self._digest, self._is_beside = hashlib.sha256(), False
        self._small = bytearray()

    def write(self, part: bytes | bytearray | memoryview) -> int:
        """Write a part; returns its bytes. Raises the OSError of the disk."""
        part = memoryview(part)
        if part.nbytes < LARGE_BYTES:
            self._small += part
        if part.nbytes >= LARGE_BYTES or len(self._small) >= LARGE_BYTES:
            self.flush()
        if part.nbytes >= LARGE_BYTES:
            for begin in range(0, part.nbytes, BLOCK_BYTES):
                self._put(part[begin : begin + BLOCK_BYTES])
        return part.nbytes

    def flush(self) -> None:
        """Write what was put together so far."""
        small, self._small = self._small, bytearray()
        self._put(memoryview(small))

    def sha256(self) -> str:
        """Of what was written, as hex; asked once nothing is hashed beside any more."""
        return self._digest.hexdigest()

    def _put(self, block: memoryview) -> None:
        self._is_beside |= block.nbytes >= LARGE_BYTES
        if self._is_beside:
            self._hashing.submit(self._digest.update, block)
        else:
            self._digest.update(block)
        remaining = block
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]
        if block.nbytes >= LARGE_BYTES:  # begin what the fsync at the end would do all at once
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, self.size_bytes, block.nbytes, os.POSIX_FADV_DONTNEED)
        self.size_bytes += block.nbytes


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written into a file: its sha256 as hex, and how much it was."""

    sha256: str
    size_bytes: int


def write(file: Path, content: Content, *, mode: int = 0o666) -> Written:
    """Write a new file and flush it to the disk; `content` is its bytes, or is called with the Sink that takes them.

    Its mode is what the umask leaves of `mode`. Raises FileExistsError where anything has that name (a link too), or
    the OSError of the disk; a file that could not be written whole is removed.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            with ThreadPoolExecutor(max_workers=1) as hashing:  # its thread begins with the first large part
                sink = Sink(descriptor, hashing)
                if callable(content):
                    content(sink)
                else:
                    sink.write(content)
                sink.flush()
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _remove(file)
        raise
    return Written(sha256=sink.sha256(), size_bytes=sink.size_bytes)


def replace(file: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Put `content` (text as UTF-8) in the place of `file` in one step: a reader sees the old or the new one, whole.

    It is staged beside as `.NAME.ID`, with the number of this process (in a second thread, of that thread).
    """
    staged = file.with_name(f".{file.name}.{threading.get_native_id()}")
    staged.unlink(missing_ok=True)  # in a container the process that was killed had the same number
    write(staged, content.encode() if isinstance(content, str) else content, mode=mode)
    try:
        os.replace(staged, file)
    except BaseException:
        _remove(staged)
        raise
    sync_folder(file.parent)


def sync_file(file: Path) -> None:
    """Flush a file that somebody else wrote to the disk."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk. A file system that knows no such thing is let off."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def clear(path: Path) -> None:
    """Remove whatever lies at a path: a folder with all in it, a file, a link (not what it points to), or nothing.

    A folder that its owner may not write is opened first. Raises the OSError of what cannot be removed.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            if (mode := os.stat(folder).st_mode) & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(folder, mode | stat.S_IRWXU)
    shutil.rmtree(path)


def contents(folder: Path) -> list[str]:
    """The names in a folder, sorted, without those that the file system itself puts into a new volume."""
    return sorted(set(os.listdir(folder)) - OF_THE_FILE_SYSTEM)


def _remove(file: Path) -> None:
    """Take away what was half written; the error that led here counts more than one from doing so."""
    with contextlib.suppress(OSError):
        file.unlink()
