"""The run directory: a new numbered one each time, the one that the user named, or one that is continued."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from loradock.errors import NotWritable, UsageError
from loradock.files import atomic_io
from loradock.files.system_errors import storage_error

RECORD = "run.json"
STATUS = "status.json"
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
METRICS = "metrics.jsonl"


def numbered(parent: Path, name: str) -> Path:
    """Create and return the first free `parent/NAME-NNN`; safe when two runs start at once."""
    number = max(_numbers(parent, slug(name)), default=0) + 1
    while True:
        try:
            return created(parent / f"{slug(name)}-{number:03d}", may_exist=False)
        except FileExistsError:
            number += 1


def slug(name: str) -> str:
    """A name as one plain part of a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def _numbers(parent: Path, stem: str) -> dict[int, Path]:
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)")
    return {int(match[1]): path for path in parent.glob(f"{stem}-*") if (match := pattern.fullmatch(path.name))}


def following(directory: Path) -> Path:
    """Create and return the first free `DIRECTORY-NNN` beside a directory, from 002."""
    number = 2
    while True:
        try:
            return created(directory.with_name(f"{directory.name}-{number:03d}"), may_exist=False)
        except FileExistsError:
            number += 1


def numbered_before(parent: Path, name: str) -> list[Path]:
    """The `parent/NAME-NNN` that hold a run, the highest number first."""
    found = sorted(_numbers(parent, slug(name)).items(), reverse=True)
    return [path for _, path in found if (path / RECORD).exists()]


def holds_run(directory: Path) -> bool:
    """True where there is a run; False for a new or empty directory. UsageError where other things lie there.

    What a run that was killed in its first moments leaves (its lock, a staged file) does not count as one.
    """
    try:
        if (directory / RECORD).exists():
            return True
        names = atomic_io.contents(directory) if directory.is_dir() else []
    except OSError as error:
        raise storage_error(error, directory) from error
    if foreign := [name for name in names if not name.startswith(".") and name != STATUS]:
        what = f"output directory {directory} is not empty ({foreign[0]}), and holds no run"
        raise UsageError(what, hint="name another directory with --output")
    return False


def created(directory: Path, *, may_exist: bool) -> Path:
    """Create the directory and prove that files can be written and renamed in it."""
    try:
        directory.mkdir(parents=True, exist_ok=may_exist)
        _prove(directory / f".write-probe-{os.getpid()}")
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


def _prove(probe: Path) -> None:
    """Write, rename and remove a file; where that fails, nothing of it stays."""
    renamed = probe.with_name(f"{probe.name}-renamed")
    try:
        probe.write_bytes(b"x")
        probe.rename(renamed).unlink()
    except OSError:
        for left in (probe, renamed):
            with contextlib.suppress(OSError):
                left.unlink()
        raise
