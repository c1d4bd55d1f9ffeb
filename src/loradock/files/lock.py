"""One lock for what is being written: an output, a folder of a cache. It ends with its process, however that ends.

The run directory has a lock of its own (`training/run_dir/output_lock.py`): forked data workers must not inherit that
one, and where a file system keeps no locks, a token in it decides between two runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loradock.errors import Locked, LoradockError

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
SHOWN_BYTES = 200


def take(descriptor: int) -> bool | None:
    """Lock an open file. False where another process has it locked, None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


@contextmanager
def locked(file: Path, *, refusal: Callable[[str], LoradockError]) -> Iterator[None]:
    """Inside, this process alone has the lock `file`, which says who that is, and is gone afterwards.

    `refusal` makes the error where another process has it, of what that one wrote: "process 12 on host". Without locks
    on the file system two processes have to be kept apart by whoever starts them. Raises OSError for a link in its
    place, or a folder that cannot be written.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if take(descriptor) is False:
                raise refusal(os.pread(descriptor, SHOWN_BYTES, 0).decode(errors="replace").strip() or "unknown")
            if not _is_at(descriptor, file):
                continue  # the process before removed it after it was opened here
            with suppress(OSError):  # a full disk: it is only said to people
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            try:
                yield
            finally:
                file.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Inside, no other process writes this file or folder, which may not be there yet. Locked where one does."""

    def refusal(holder: str) -> Locked:
        what = f"another process is writing {output} ({holder})"
        return Locked(what, hint="wait for it, or name another output")

    with locked(output.with_name(f".{output.name}.lock"), refusal=refusal):
        yield


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.lstat())
    except FileNotFoundError:
        return False
