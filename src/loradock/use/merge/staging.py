"""A new directory that appears whole or not at all, whatever ends the process that writes it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loradock.errors import DiskFull, UsageError, storage_error
from loradock.files import atomic_io
from loradock.machine import Host
from loradock.text.amounts import free_text, needed_text
from loradock.use.inference.exclusive import locked


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Inside, an empty directory beside `output`; on a clean exit it is flushed to the disk and renamed to it.

    What a process that was killed left behind is removed: a lock says that no other one is at it. Raises UsageError
    where `output` exists, Locked where another process writes it, DiskFull, NotWritable or StorageError; then nothing
    appears.
    """
    refuse_existing(output)
    folder = output.with_name(f".{output.name}.staged")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with locked(output):
            refuse_existing(output)
            atomic_io.clear(folder)
            folder.mkdir()
            try:
                yield folder
                _put_in_place(folder, output)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        raise storage_error(error, output) from error


def refuse_existing(output: Path, *, is_folder: bool = True) -> None:
    """UsageError where anything has that name; an empty folder is taken for a folder, but for one that is a mount."""
    if not os.path.lexists(output):
        return
    is_empty = output.is_dir() and not output.is_symlink() and not any(output.iterdir())
    if not (is_folder and is_empty):
        raise UsageError(f"{output} already exists", hint=f"name a new one, or rm -r {shlex.quote(str(output))}")
    if output.is_mount():
        what = f"{output} is a mount point, and what is written appears as a whole folder"
        raise UsageError(what, hint=f"name a folder in it: {output / 'merged'}")


def _put_in_place(folder: Path, output: Path) -> None:
    atomic_io.open_to_the_group(folder)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            atomic_io.sync_file(file)
    atomic_io.sync_folder(folder)
    os.rename(folder, output)
    atomic_io.sync_folder(output.parent)


def refuse_small_disk(output: Path, need: int) -> int | None:
    """Free bytes where `output` will lie, None where they are not known. DiskFull where `need` is more."""
    room = Host().space(Host().nearest(output.absolute()))
    if room is not None and need > room.free_bytes:
        what = f"{output} needs {needed_text(need)}, and {free_text(room.free_bytes)} are free"
        raise DiskFull(
            what,
            hint=f"free {needed_text(need - room.free_bytes)} there, or name an output on a larger disk",
        )
    return room.free_bytes if room else None
