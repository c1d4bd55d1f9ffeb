"""The run directory: a new numbered one each time, the one that the user named, or one that is continued."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from loradock.errors import DiskFull, NoCheckpoint, NotWritable, StorageError, UsageError

RECORD = "run.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def numbered(parent: Path, name: str) -> Path:
    """Create and return the first free `parent/NAME-NNN`; safe when two runs start at once."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    taken = [int(m[1]) for p in parent.glob(f"{slug}-*") if (m := re.fullmatch(rf"{re.escape(slug)}-(\d+)", p.name))]
    number = max(taken, default=0) + 1
    while True:
        try:
            return created(parent / f"{slug}-{number:03d}", may_exist=False)
        except FileExistsError:
            number += 1


def open_to_the_group(directory: Path) -> None:
    """Give the files below a directory the mode that the umask leaves; safetensors writes 0600 whatever the umask."""
    mask = os.umask(0o077)
    os.umask(mask)
    for file in directory.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~mask)


def named(directory: Path, *, resume: bool) -> Path:
    """The directory that the user named: new or empty, or one with a run in it that is to be resumed."""
    try:
        holds_run = (directory / RECORD).exists()
        is_filled = directory.is_dir() and any(directory.iterdir())
    except OSError as error:
        raise storage_error(error, directory) from error
    if resume and not holds_run:
        raise NoCheckpoint(f"there is no run in {directory}", hint="leave out --resume to start one")
    if not resume and is_filled:
        what = "holds a run" if holds_run else "is not empty"
        remedy = "--resume continues it, or name" if holds_run else "name"
        raise UsageError(f"output directory {directory} {what}", hint=f"{remedy} another directory with --output")
    return created(directory, may_exist=True)


def created(directory: Path, *, may_exist: bool) -> Path:
    """Create the directory and prove that files can be written and renamed in it."""
    try:
        directory.mkdir(parents=True, exist_ok=may_exist)
        probe = directory / f".write-probe-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.rename(probe.with_name(f"{probe.name}-renamed")).unlink()
    except FileExistsError:
        if may_exist:
            raise NotWritable(f"{directory} is a file", hint="name a directory with --output") from None
        raise
    except (PermissionError, NotADirectoryError) as error:
        raise NotWritable(
            f"cannot write in {directory}: {error.strerror}", hint="--output a directory that this user may write"
        ) from error
    except OSError as error:
        raise storage_error(error, directory) from error
    return directory


def storage_error(error: OSError, path: Path) -> StorageError | DiskFull | NotWritable:
    """The loradock error for an OSError while writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left for {path}", hint="free space, or --output a directory on another disk")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return NotWritable(
            f"cannot write {path}: {error.strerror}", hint="--output a directory that this user may write"
        )
    return StorageError(f"writing {path} failed: {error.strerror}", hint="check the disk (dmesg) and try again")


def last_checkpoint(directory: Path) -> Path:
    """The checkpoint with the highest step; NoCheckpoint where there is none."""
    found = [
        (int(match[1]), path)
        for path in (directory / "checkpoints").glob("checkpoint-*")
        if (match := CHECKPOINT.fullmatch(path.name))
    ]
    if not found:
        raise NoCheckpoint(f"the run in {directory} has no checkpoint", hint="start a new run with another --output")
    return max(found)[1]


def step_of(checkpoint: Path) -> int:
    """The optimiser step that a checkpoint directory was written after."""
    return int(checkpoint.name.removeprefix("checkpoint-"))
