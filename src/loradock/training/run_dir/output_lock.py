"""The lock of a run directory: one writer, and a fence for the one that another run has replaced.

`DIR/.lock` is held with a POSIX record lock: the kernel drops it when the owner dies, forked data workers do not
inherit it, and NFS keeps it. The file holds one JSON line that names the owner, with a token that grows by one with
every owner. Where a file system keeps no locks the token alone decides: the later run wins, and the earlier one ends
before its next commit.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loradock.errors import Locked
from loradock.files.system_errors import storage_error
from loradock.machine import Host

LOCK = ".lock"
LINE_BYTES = 512  # one size, so that a line is written over the last one in one call, and needs no new block
FLOCK = "hhqqi4x"  # struct flock where off_t has 64 bits: type, whence, start, length, pid
HOLDER_SECONDS = 2.0
HELD_ELSEWHERE = (errno.EACCES, errno.EAGAIN)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
HELD_HERE_ONLY = ("nolock", "local_lock=all", "local_lock=posix", "nobrl")

# A POSIX lock belongs to the process: a second one in here would be granted, and closing it would drop the first.
_held: set[tuple[int, int, int]] = set()
_guard = threading.Lock()


class OutputLock:
    """The right to write in `directory`. `warning` says so where another host's run would not be kept out."""

    warning: str | None

    def __init__(self, directory: Path, *, descriptor: int, key: tuple[int, int, int], warning: str | None) -> None:
        """Made by `take`."""
        self.directory = directory
        self.warning = warning
        self._descriptor = descriptor
        self._key = key
        self._token = 1 + _number(_read(descriptor).get("token"))
        self._owner = uuid.uuid4().hex
        _write(descriptor, {"token": self._token, "owner": self._owner, **_this_process()})

    @classmethod
    def take(cls, directory: Path) -> OutputLock:
        """Lock the directory (made where it is missing) before anything of a run is written in it.

        Raises Locked where another run holds it, else DiskFull, NotWritable or StorageError.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            key = _reserve(directory)
            try:
                descriptor, warning = _locked_file(directory)
                try:
                    return cls(directory, descriptor=descriptor, key=key, warning=warning)
                except BaseException:
                    os.close(descriptor)
                    raise
            except BaseException:
                _forget(key)
                raise
        except OSError as error:
            raise storage_error(error, directory / LOCK) from error

    def check(self) -> None:
        """The fence, to be passed before each commit: Locked where another run took over since, or the file is gone.

        Takes the lock again where it was lost without one: any close of the file in this process drops it.
        """
        try:
            if _identity(os.stat(self.directory / LOCK)) != _identity(os.fstat(self._descriptor)):
                raise self._replaced(_read_path(self.directory / LOCK))
            # Without a lock NFS may answer from its cache; opening the file asks the server.
            fresh = _read_path(self.directory / LOCK) if self.warning else None
            is_held = _try_lock(self._descriptor)
            content = fresh or _read(self._descriptor)
        except OSError as error:
            if error.errno in GONE:
                raise self._replaced({}) from error
            raise storage_error(error, self.directory / LOCK) from error
        if not is_held or (content.get("token"), content.get("owner")) != (self._token, self._owner):
            raise self._replaced(content)

    def release(self) -> None:
        """Let the next run in. Does nothing a second time, nor in a forked child."""
        if self._key[0] == os.getpid() and self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            _forget(self._key)

    def _replaced(self, holder: dict[str, Any]) -> Locked:
        if not holder:
            what = f"{self.directory / LOCK} of this run is gone: the directory was moved or removed"
            return Locked(what, hint="start again with --output a directory that only this run uses")
        what = f"another run has taken over {self.directory}: {_described(holder)}"
        return Locked(what, hint=f"leave {self.directory} to that run, or start this one with another --output")


def _reserve(directory: Path) -> tuple[int, int, int]:
    """Note that this process (not its forked children) is about to lock the directory; Locked where it has."""
    key = (os.getpid(), *_identity(os.stat(directory)))
    with _guard:
        if key in _held:
            what = f"this process (pid {os.getpid()}) already holds {directory}"
            raise Locked(what, hint="release the lock first, or use another --output")
        _held.add(key)
    return key


def _forget(key: tuple[int, int, int]) -> None:
    with _guard:
        _held.discard(key)


def _locked_file(directory: Path) -> tuple[int, str | None]:
    """The lock file, open and locked, and a warning where that does not keep every other run out."""
    path = directory / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if not _try_lock(descriptor):
                raise _refusal(directory, _holder(descriptor))
            if _is_at(path, descriptor):  # else somebody removed it between the two calls
                return descriptor, _weakness(directory, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock the file for this process. False where another process holds it; True also where nothing can be locked."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return True
        if error.errno not in HELD_ELSEWHERE:
            raise
        return False
    return True


def _weakness(directory: Path, descriptor: int) -> str | None:
    """Why the lock that was just taken does not keep every other run out, as a warning; None where it does."""
    ends = "a second run would take it over, and this one end with 84 before its next commit"
    if not _holds(descriptor):
        return f"the file system of {directory} keeps no locks: {ends}"
    mount = Host().mount(directory)
    local = [option for option in mount.options if option in HELD_HERE_ONLY] if mount else []
    if mount and local:
        return (
            f"{mount.point} is mounted with {local[0]}: a lock of {directory} holds on this host only; elsewhere {ends}"
        )
    return None


def _holds(descriptor: int) -> bool:
    """True where a lock of another kind on the same file is refused while this process's lock is on it.

    An open-file-description lock conflicts with the POSIX lock of its own process, so no second process is needed.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
    except OSError as error:
        return error.errno in (
            *HELD_ELSEWHERE,
            errno.EINVAL,
        )  # EINVAL: a kernel without such locks, which tells nothing
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))
    return False


def _whole_file(kind: int) -> bytes:
    return struct.pack(FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _holder(descriptor: int) -> dict[str, Any]:
    """Who holds the lock. The kernel's word counts more than the file's, where an owner has yet to write its line."""
    until = time.monotonic() + HOLDER_SECONDS
    while True:
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, _whole_file(fcntl.F_WRLCK)))
        content = _read(descriptor)
        if kind == fcntl.F_UNLCK or pid <= 0 or content.get("pid") == pid:  # not positive: another host's
            return content
        if time.monotonic() > until:
            return {"pid": pid, "host": socket.gethostname(), "started": "an unknown time"}
        time.sleep(0.01)


def _refusal(directory: Path, holder: dict[str, Any]) -> Locked:
    pid, host = holder.get("pid"), holder.get("host")
    end = f"kill {pid}" + ("" if host == socket.gethostname() else f" on {host}")
    ending = f"{end} ends it with a checkpoint; " if holder else ""
    return Locked(
        f"another run is writing in {directory}: {_described(holder)}",
        hint=f"wait until it has ended; {ending}or use another --output",
    )


def _described(holder: dict[str, Any]) -> str:
    if not holder:
        return "its owner is not known"
    return f"pid {holder.get('pid')} on {holder.get('host')}, since {holder.get('started')}"


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _read(descriptor: int) -> dict[str, Any]:
    """What the file says of its owner; nothing where it is new, or was left half written."""
    try:
        content = json.loads(os.pread(descriptor, LINE_BYTES, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _read_path(path: Path) -> dict[str, Any]:
    """What another file that took this one's place says. It is not ours: closing it drops no lock of this run."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: dict[str, Any]) -> None:
    line = json.dumps(content).encode()
    os.pwrite(descriptor, line.ljust(LINE_BYTES - 1) + b"\n", 0)
    os.fsync(descriptor)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _identity(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_dev, seen.st_ino


def _is_at(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return _identity(os.stat(path)) == _identity(os.fstat(descriptor))
    return False
