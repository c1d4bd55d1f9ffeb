"""Digests of files that have not changed since they were hashed, kept between runs: hashing 8 GB takes ten seconds.

A file counts as unchanged where its mark (`machine/marks.py`) is as it was; so what was hashed is what is there. Once a
week all are hashed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from loradock.files import atomic_io, foreign_json, regular
from loradock.machine.lockfile.digests import Digests
from loradock.machine.marks import Mark, is_recent, is_settled, mark_of

NAME = "lock-digests.json"


class Known:
    """The digests kept in `folder`. Without the file, or with one that others may write or that is damaged, none is."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self.began_ns = time.time_ns()
        self.since_ns, self.kept = self.began_ns, {}
        try:
            content = foreign_json.loads(regular.read_private(self.file))
            if is_recent(content["since_ns"]):
                self.since_ns, self.kept = content["since_ns"], dict(content["files"])
        except (OSError, ValueError, KeyError, TypeError):
            return

    def found(self, requests: Mapping[str, set[str]]) -> dict[str, Digests]:
        """{path: digests} of the files that are known by all the algorithms wanted for them, and have not changed."""
        known: dict[str, Digests] = {}
        for path, algorithms in requests.items():
            try:
                mark, digests = self.kept.get(path, (None, {}))
                if mark and algorithms <= digests.keys() and mark == mark_of(path):
                    known[path] = {name: bytes.fromhex(digests[name]) for name in algorithms}
            except (ValueError, TypeError, AttributeError):  # a damaged entry: the file is hashed
                continue
        return known

    def keep(self, digests: Mapping[str, Digests]) -> None:
        """Write these for the next run. Where the folder cannot be written, that one hashes again: nothing is lost."""
        entries: dict[str, tuple[Mark, dict[str, str]]] = {}
        for path, digest_text in digests.items():
            mark = mark_of(path)
            if isinstance(digest_text, dict) and mark and is_settled(mark, at_ns=self.began_ns):
                entries[path] = (mark, {name: digest.hex() for name, digest in digest_text.items()})
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic_io.replace(self.file, json.dumps({"since_ns": self.since_ns, "files": entries}), mode=0o600)
        except OSError:
            return
