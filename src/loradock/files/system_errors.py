"""What a failed call of the system means: a path that is refused, a disk that is full, a machine that failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from loradock.errors import DiskFull, EnvironmentUnfit, InputMissing, LoradockError, NotWritable, StorageError

NOT_REGULAR, TOO_LARGE = errno.ENOTSUP, errno.EFBIG
"""What `files.regular` raises of a file that it does not read."""
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
MACHINE = (
    *OUT_OF_SPACE, *OUT_OF_DESCRIPTORS, errno.EIO, errno.ESTALE, errno.EUCLEAN, errno.EROFS, errno.ENOMEM, errno.EINTR,
)  # fmt: skip
"""What a system call says where the machine failed, and not who asked: one may ask the same again."""
REFUSED = (
    errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, NOT_REGULAR, TOO_LARGE,
)  # fmt: skip
"""What a system call says of a path that can be mended where it was written."""
SHOWN_PATH = 300


def refused_path(error: BaseException) -> InputMissing | None:
    """The error for a path that the system refuses, wherever it was first looked at; None for all else."""
    if not (isinstance(error, OSError) and error.errno in REFUSED and error.filename):
        return None
    path = str(error.filename)
    shown = path if len(path) <= SHOWN_PATH else f"{path[:SHOWN_PATH]}... ({len(path):,} characters)"
    hint = "a name has at most 255 bytes" if error.errno == errno.ENAMETOOLONG else f"ls -ld {shown}"
    return InputMissing(f"cannot use the path {shown}: {error.strerror}", hint=hint)


def storage_error(error: OSError, path: Path) -> StorageError | DiskFull | NotWritable:
    """The loradock error for an OSError while writing."""
    if error.errno in OUT_OF_SPACE:
        return DiskFull(f"no space left for {path}", hint="free space, or name an output on another disk")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return NotWritable(f"cannot write {path}: {error.strerror}", hint="name an output where this user may write")
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return NotWritable(f"cannot write {path}: {error.strerror}", hint="name another output")
    if error.errno in (NOT_REGULAR, TOO_LARGE):
        return StorageError(f"cannot use {path}: {error.strerror}", hint=f"ls -lL {path}")
    return StorageError(f"writing {path} failed: {error.strerror}", hint=_remedy(error.errno))


def machine_error(error: BaseException, *, within: Path | None = None) -> LoradockError | None:
    """The error for what the machine did: a system call that failed, or memory that ran out; None for all else.

    Libraries in C++ and Rust, and the loader of shared libraries, tell it in the text of errors of their own, or an
    error is raised from that one. `within` is where the run reads and writes: few of them name the file.
    """
    failed = _failed_call(error, within=within) or _unloaded(error)
    return failed or (machine_error(error.__cause__, within=within) if error.__cause__ else None)


def _failed_call(error: BaseException, *, within: Path | None) -> LoradockError | None:
    if isinstance(error, OSError) and error.errno:
        number = error.errno
    else:
        number = next((each for each in MACHINE if os.strerror(each) in str(error)), None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        said = _first_line(error) or "an allocation was refused"
        return EnvironmentUnfit(f"out of host memory: {said}", hint="give the process, or its container, more memory")
    if number not in MACHINE:
        return None
    file = error.filename if isinstance(error, OSError) else None
    if number in OUT_OF_SPACE or number == errno.EROFS:
        return storage_error(OSError(number, os.strerror(number)), Path(str(file or within or "the files of this run")))
    what = f"reading or writing {file}" if file else "reading or writing"
    place = f", in a run in {within}" if within and not file else ""
    said = "" if isinstance(error, OSError) else f": {_first_line(error)}"
    return StorageError(f"{what} failed{place}: {os.strerror(number)}{said}", hint=_remedy(number))


def _unloaded(error: BaseException) -> EnvironmentUnfit | None:
    """The error where the dynamic loader refused a library, for Python's import or for ctypes: it may not say why."""
    if isinstance(error, ImportError):
        is_loaders = str(error.path).endswith(".so") and not str(error).startswith("cannot import name")
    else:
        is_loaders = isinstance(error, OSError) and not error.errno and "shared object" in str(error)
    hint = "look at its disk (dmesg) and at free memory; else install it again"
    return EnvironmentUnfit(f"a library cannot be loaded: {error}", hint=hint) if is_loaders else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _remedy(number: int | None) -> str:
    return (
        "raise the limit of open files: ulimit -n 65536"
        if number in OUT_OF_DESCRIPTORS
        else "check the disk (dmesg) and try again"
    )
