"""One writer of a file or directory at a time, also of one that is not there yet."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loradock.errors import Locked


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Inside, no other process writes `output`. Locked where one does."""
    file = output.with_name(f".{output.name}.lock")
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Locked(f"another process is writing {output}", hint="wait for it, or name another output") from None
        if _is_same(descriptor, file):  # else the process before removed it after it was opened here
            break
        os.close(descriptor)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        os.close(descriptor)


def _is_same(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
