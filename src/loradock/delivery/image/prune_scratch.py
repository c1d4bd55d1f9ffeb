"""The entries of a scratch directory that `loradock prune` may take: nothing outside of it, no unknown name."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from loradock.delivery.image.prune import Entry
from loradock.delivery.image.scratch import LOCK, MARKER
from loradock.errors import InputMissing, UsageError

# Rooms whose children are entries of their own.
ROOMS = ("wheels", "cache", "tmp")
COMPILE_TREE = "flash-attn-"
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def scratch_root(directory: Path) -> Path:
    """The scratch at `directory` (or in its folder `loradock`); UsageError without the marker of `loradock build`."""
    if not directory.is_dir():
        raise InputMissing(f"{directory}: no such directory", hint="name what `loradock build --scratch` was given")
    for root in (directory, directory / "loradock"):
        if _is_regular(root / MARKER):
            return root
    raise UsageError(
        f"{directory} is not a scratch directory of loradock: it has no {MARKER}; nothing in it is touched",
        hint="name what `loradock build --scratch` was given",
    )


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def scratch_entries(root: Path) -> list[Entry]:
    """Every entry of the rooms; records, the lock and unknown names are named with the reason why they stay."""
    entries: list[Entry] = []
    with os.scandir(root) as listing:
        for item in sorted(listing, key=lambda item: item.name):
            if item.name in {MARKER, LOCK}:
                continue
            if item.name in ROOMS and item.is_dir(follow_symlinks=False):
                entries += [_entry(root, f"{item.name}/{child}") for child in sorted(os.listdir(item))]
            elif item.name == "records":
                entries.append(_entry(root, item.name, kept="says what was built, and is small"))
            elif item.name.startswith(COMPILE_TREE) and item.is_dir(follow_symlinks=False):
                entries.append(_entry(root, item.name))
            else:
                why = "a symbolic link; none is followed" if item.is_symlink() else "not made by loradock"
                entries.append(_entry(root, item.name, kept=why))
    return entries


def _entry(root: Path, name: str, *, kept: str = "") -> Entry:
    path = root / name
    home = root.lstat().st_dev
    size_bytes, last_used, is_elsewhere = 0, 0.0, False
    try:
        if stat.S_ISLNK(path.lstat().st_mode):
            kept = kept or "a symbolic link; none is followed"
        # One inode counts once: a compile tree links its files.
        inodes: set[tuple[int, int]] = set()
        for facts in _walk(path):
            is_elsewhere = is_elsewhere or facts.st_dev != home
            size_bytes += 0 if (facts.st_dev, facts.st_ino) in inodes else facts.st_blocks * 512
            inodes.add((facts.st_dev, facts.st_ino))
            read = facts.st_atime if stat.S_ISREG(facts.st_mode) else 0.0
            last_used = max(last_used, facts.st_mtime, facts.st_ctime, read)
    except OSError as error:
        kept = kept or f"cannot be read: {error.strerror}"
    if is_elsewhere:
        kept = kept or "another file system is mounted in it"
    identity = f"scratch:{path}"
    return Entry(kind="scratch", id=identity, name=name, last_used=last_used, parts={identity: size_bytes}, kept=kept)


def _walk(path: Path) -> Iterator[os.stat_result]:
    """The facts of a path and, for a directory, of all below it; links are not followed."""
    yield path.lstat()
    if path.is_symlink() or not path.is_dir():
        return
    with os.scandir(path) as listing:
        for item in listing:
            if item.is_dir(follow_symlinks=False):
                yield from _walk(Path(item.path))
            else:
                yield item.stat(follow_symlinks=False)


def take_scratch(root: Path, name: str) -> None:
    """Remove one entry, reached from the scratch through open directories: a link put in its way is not followed."""
    room, _, child = name.rpartition("/")
    folder = os.open(root, FLAGS)
    try:
        if room:
            inner = os.open(room, FLAGS, dir_fd=folder)
            os.close(folder)
            folder = inner
        if stat.S_ISDIR(os.stat(child, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(child, dir_fd=folder)
        else:
            os.unlink(child, dir_fd=folder)
    finally:
        os.close(folder)
