"""Files that outlive a power cut: written whole, flushed to the disk, and put in place by rename.

Every OSError comes out as it is; `errors.storage_error` makes of it what a person reads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
HASHED_BESIDE_BYTES = 1 << 20
OF_THE_FILE_SYSTEM = {"lost+found", ".snapshot", ".snapshots", ".zfs"}
"""What lies in the root of a new volume: of ext4, NetApp, Btrfs tools and ZFS."""


def write(file: Path, content: bytes | memoryview, *, mode: int = 0o666) -> str:
    """Write a new file and flush it to the disk; returns the sha256 of `content` as hex.

    Its mode is what the umask leaves of `mode`; a large content is hashed while the disk is busy with it. Raises
    FileExistsError where anything has that name (a link too), or the OSError of the disk; a file that could not be
    written whole is removed.
    """
    if len(content) < HASHED_BESIDE_BYTES:
        _write(file, content, mode)
        return _sha256(content)
    with ThreadPoolExecutor(max_workers=1) as pool:
        digest = pool.submit(_sha256, content)
        _write(file, content, mode)
        return digest.result()


def _sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(file: Path, content: bytes | memoryview, mode: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _remove(file)
        raise


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
