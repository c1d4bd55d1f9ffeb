"""The environment of these tests as hard links, made in a second, to be broken for real: file by file, link by link."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(sys.prefix)


@contextmanager
def left_alone() -> Iterator[None]:
    """While no other process of these tests makes or removes links: each changes the time of its file (st_ctime)."""
    with open(SOURCE / "pyvenv.cfg", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class LinkedVenv:
    """A copy that shares every file with the real environment; each fault is undone when its `with` ends.

    Nothing is ever written through a link: a changed file is a new one that takes the name.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.python = str(prefix / "bin" / "python")
        self.site = next(prefix.glob("lib/python3.*/site-packages"))
        self.aside = prefix.parent / "aside"
        self.aside.mkdir()

    @contextmanager
    def removed(self, name: str) -> Iterator[Path]:
        """Without this file or folder of the site-packages."""
        path, kept = self.site / name, Path(tempfile.mkdtemp(dir=self.aside)) / "kept"
        path.rename(kept)
        try:
            yield path
        finally:
            kept.rename(path)

    @contextmanager
    def planted(self, name: str, content: bytes | str) -> Iterator[Path]:
        """With a further file."""
        path = self.site / name
        assert not path.exists(), path
        first = next((folder for folder in reversed(path.parents) if not folder.exists()), path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        try:
            yield path
        finally:
            shutil.rmtree(first) if first.is_dir() else first.unlink()

    @contextmanager
    def changed(self, name: str, old: bytes, new: bytes) -> Iterator[Path]:
        """With other content in a file: the first `old` is `new`."""
        content = (self.site / name).read_bytes()
        assert old in content, (name, old)
        with self.removed(name) as path:
            path.write_bytes(content.replace(old, new, 1))
            try:
                yield path
            finally:
                path.unlink()

    def dist_info(self, name: str) -> str:
        """The name of a distribution's folder."""
        return next(self.site.glob(f"{name}-*.dist-info")).name


@contextmanager
def linked_venv(folder: Path) -> Iterator[LinkedVenv]:
    """The copy, in `folder` or, where links cannot reach it, beside the real environment."""
    if os.stat(folder).st_dev != os.stat(SOURCE).st_dev:
        folder = Path(tempfile.mkdtemp(prefix=".venv-linked-", dir=SOURCE.parent))
    try:
        with left_alone():
            subprocess.run(["cp", "-al", str(SOURCE), str(folder / "venv")], check=True)
        yield LinkedVenv(folder / "venv")
    finally:
        with left_alone():
            shutil.rmtree(folder)


def inodes(names: list[str]) -> dict[str, tuple[int, int, int]]:
    """{file of the real site-packages: inode, size, time of change in ns}, to see that nothing touched it."""
    site = next(SOURCE.glob("lib/python3.*/site-packages"))
    stats = {name: (site / name).stat() for name in names}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}
