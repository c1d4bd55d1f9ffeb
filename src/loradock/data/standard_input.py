"""Rows from standard input: kept in a file below the cache, since they are read twice and again when a run resumes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from loradock.data.cache import writing
from loradock.data.readers.base import CHUNK_BYTES
from loradock.errors import DataError, UsageError
from loradock.files import atomic_io, staged

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SUFFIXES = {
    b"[": ".json",
    b"{": ".jsonl",
    b"\x1f\x8b": ".jsonl.gz",
    b"\x28\xb5\x2f\xfd": ".jsonl.zst",
    b"PAR1": ".parquet",
}
"""How rows begin, and the kind of file that they are."""


def spooled(stream: BinaryIO, folder: Path) -> Path:
    """Write all of `stream` to a file in `folder` that is named by its content, and return it.

    UsageError where the stream is a terminal or another rank reads it too, DataError where it is empty or of a kind
    that only a file's name tells; what a full or closed disk ends with is that of the cache.
    """
    if stream.isatty() or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        why = "a terminal" if stream.isatty() else "shared by the ranks of a launch"
        raise UsageError(f"--data - reads standard input, which is {why}", hint="write the rows to a file: --data FILE")
    with writing(folder), staged.in_cache(folder) as place:
        digest, head = hashlib.sha256(), b""
        with (place / "rows").open("wb") as file:
            while chunk := stream.read(CHUNK_BYTES):
                head = head or chunk.removeprefix(BYTE_ORDER_MARK).lstrip()
                digest.update(chunk)
                file.write(chunk)
        atomic_io.sync_file(place / "rows")
        spool = (place / "rows").rename(folder / f"stdin-{digest.hexdigest()[:16]}{_suffix(head)}")
        atomic_io.sync_folder(folder)
        return spool


def _suffix(head: bytes) -> str:
    for start, suffix in SUFFIXES.items():
        if head.startswith(start):
            return suffix
    if not head:
        raise DataError("standard input is empty", hint="look at what writes into the pipe")
    what = "standard input holds neither JSON, JSONL nor Parquet"
    raise DataError(what, hint="write CSV or text to a file with its suffix: --data FILE.csv")
