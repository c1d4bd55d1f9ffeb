"""Digests of files that have not changed since they were hashed, kept between runs: hashing 8 GB takes ten seconds.

A file counts as unchanged where its device, inode, size and both times are as they were. The kernel sets the time of
the last change (st_ctime) at every write, rename and chmod, and no program can set it; so what was hashed is what
is there. A file that was changed within the last seconds before it was hashed is not kept: a second change within the
same tick of the clock would not show.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from loradock.files import atomic_io
from loradock.machine.lockfile.digests import Digests

NAME = "lock-digests.json"
SETTLED_NS = 2_000_000_000
"""Coarser than the clock of any file system that a virtual environment lies on."""

Mark = list[int]


class Known:
    """The digests kept in `folder`. Without the file, or with one that cannot be read, none is known."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self.began_ns = time.time_ns()
        try:
            self.kept = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.kept = {}

    def found(self, requests: Mapping[str, set[str]]) -> dict[str, Digests]:
        """{path: digests} of the files that are known by all the algorithms wanted for them, and have not changed."""
        known: dict[str, Digests] = {}
        for path, algorithms in requests.items():
            mark, digests = self.kept.get(path, (None, {}))
            if mark and algorithms <= digests.keys() and mark == mark_of(path):
                known[path] = {name: bytes.fromhex(digests[name]) for name in algorithms}
        return known

    def keep(self, digests: Mapping[str, Digests]) -> None:
        """Write these for the next run. Where the folder cannot be written, that one hashes again: nothing is lost."""
        entries: dict[str, tuple[Mark, dict[str, str]]] = {}
        for path, digest_text in digests.items():
            mark = mark_of(path)
            if isinstance(digest_text, dict) and mark and mark[-1] < self.began_ns - SETTLED_NS:
                entries[path] = (mark, {name: digest.hex() for name, digest in digest_text.items()})
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic_io.replace(self.file, json.dumps(entries))
        except OSError:
            return


def mark_of(path: str) -> Mark | None:
    """What changes whenever the file does; None where it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
