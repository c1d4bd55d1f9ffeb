"""Prepared rows on disk: flat files, staged beside their place and renamed into it.

An entry is a directory named by its key::

    tokens.i32      int32   [tokens]    token ids of all rows, one after the other
    supervised.u8   uint8   [tokens]    1 where the token is learned
    offsets.i64     int64   [rows + 1]  where each row begins in tokens
    learned.i32     int32   [rows]      supervised tokens of each row
    lines.i64       int64   [rows]      line of the source, counted on over its files; minus the number of a record that
                                        shares its line with others; 0 where there is none
    roles.u8        uint8   [rows]      of pairs alone, where a row is a document: query, positive or negative; a query
                                        begins the documents of one row of the source, and `supervised` says pooled
    manifest.json                       counts, rows per source, sha256 of every file and of itself
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from loradock.errors import DiskFull, LoradockError, NotWritable, StorageError

FILES = {"tokens": "i32", "supervised": "u8", "offsets": "i64", "learned": "i32", "lines": "i64"}
PAIR_FILES = FILES | {"roles": "u8"}
DTYPES = {"i32": np.dtype("<i4"), "i64": np.dtype("<i8"), "u8": np.dtype("u1")}
HASHED_WHEN_OPENED_BYTES = 256 << 20
LOCK = "lock"
"""Of a staged directory: held as long as its builder lives."""
STALE_STAGING_SECONDS = 24 * 3600
"""After which one is removed whose lock says nothing."""


class CorruptEntry(Exception):
    """A cache entry that is partial or was changed; the message says how."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive prepared rows: ids int32 [tokens], supervised uint8 [tokens], the other arrays [rows].

    `conversations` of them were rendered with the chat template, the others are raw text. `special_texts` counts the
    special tokens whose text their contents hold, `altered` the rows that the template changes. Of pairs, rows are
    documents with their `roles` uint8 [rows], of which `cut` were too long.
    """

    ids: np.ndarray[Any, Any]
    supervised: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    learned: np.ndarray[Any, Any]
    lines: np.ndarray[Any, Any]
    conversations: int
    special_texts: Counter[str]
    altered: int = 0
    roles: np.ndarray[Any, Any] | None = None
    cut: int = 0


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an OSError into DiskFull, NotWritable or StorageError, each with a remedy."""
    try:
        yield
    except OSError as error:
        raise _storage_error(error, place=place) from error


def _storage_error(error: OSError, *, place: Path) -> LoradockError:
    elsewhere = "--set data.cache=DIRECTORY on a disk with"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left for prepared data in {place}", hint=f"free some, or {elsewhere} more space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return NotWritable(f"cannot write prepared data to {place}: {error.strerror}", hint=f"{elsewhere} write access")
    return StorageError(f"writing prepared data to {place} failed: {error}", hint=f"{elsewhere} a working file system")


class EntryWriter:
    """Writes one entry into a staged directory; `commit` puts it in place, leaving the block without it removes it."""

    def __init__(self, cache_dir: Path, *, key: str, has_roles: bool = False) -> None:
        self._target = cache_dir / key
        self._files = PAIR_FILES if has_roles else FILES
        self.rows = 0
        self.tokens = 0
        self.learned_tokens = 0
        self._digests = {name: hashlib.sha256() for name in self._files}
        with writing(cache_dir):
            cache_dir.mkdir(parents=True, exist_ok=True)
            _sweep(cache_dir)
            self._staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=cache_dir))
            self._lock = (self._staged / LOCK).open("wb")
            with contextlib.suppress(OSError):  # a file system without locks: its age has to say it
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._streams = {
                name: (self._staged / f"{name}.{kind}").open("wb", buffering=1 << 20)
                for name, kind in self._files.items()
            }
        self._put("offsets", np.zeros(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        shutil.rmtree(self._staged, ignore_errors=True)
        self._lock.close()

    def write(self, chunk: Chunk) -> None:
        """Append rows. Raises DiskFull, NotWritable or StorageError."""
        self._put("tokens", chunk.ids)
        self._put("supervised", chunk.supervised)
        self._put("offsets", self.tokens + np.cumsum(chunk.lengths, dtype=np.int64))
        self._put("learned", chunk.learned)
        self._put("lines", chunk.lines)
        if chunk.roles is not None:
            self._put("roles", chunk.roles)
        self.rows += len(chunk.lengths)
        self.tokens += len(chunk.ids)
        self.learned_tokens += int(chunk.learned.sum())

    def _put(self, name: str, values: np.ndarray[Any, Any]) -> None:
        data = np.ascontiguousarray(values, dtype=DTYPES[PAIR_FILES[name]]).data
        self._digests[name].update(data)
        with writing(self._target.parent):
            self._streams[name].write(data)

    def commit(self, **facts: Any) -> dict[str, Any]:
        """Make the entry durable and visible under its key, with `facts` in its manifest, which is returned.

        Where another process put the same entry there first, that one stays.
        """
        manifest = {
            **facts,
            "rows": self.rows,
            "tokens": self.tokens,
            "learned_tokens": self.learned_tokens,
            "files": {f"{name}.{kind}": self._digests[name].hexdigest() for name, kind in self._files.items()},
        }
        with writing(self._target.parent):
            for stream in self._streams.values():
                stream.flush()
                os.fsync(stream.fileno())
                stream.close()
            with (self._staged / "manifest.json").open("w", encoding="utf-8") as file:
                file.write(json.dumps({**manifest, "sha256": _manifest_digest(manifest)}, indent=1))
                file.flush()
                os.fsync(file.fileno())
            self._staged.chmod(0o755)
            (self._staged / LOCK).unlink()
            self._rename()
        return manifest

    def _rename(self) -> None:
        try:
            os.rename(self._staged, self._target)
        except OSError:
            try:
                read_manifest(self._target)
            except CorruptEntry:
                discard(self._target)
                os.rename(self._staged, self._target)
        directory = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def discard(entry: Path) -> None:
    """Remove an entry: first out of its place in one step, so that nobody opens half of it."""
    aside = Path(tempfile.mkdtemp(prefix=".staged-", dir=entry.parent))
    with contextlib.suppress(FileNotFoundError):
        os.rename(entry, aside / entry.name)
    shutil.rmtree(aside, ignore_errors=True)


def read_manifest(entry: Path) -> dict[str, Any]:
    """The manifest of a sound entry. CorruptEntry where a file is missing, short, or not what was written.

    Contents are hashed up to HASHED_WHEN_OPENED_BYTES in all; of a larger entry the sizes.
    """
    try:
        manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
        claimed = manifest.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CorruptEntry(f"{entry}: no readable manifest: {error}") from error
    if claimed != _manifest_digest(manifest):
        raise CorruptEntry(f"{entry}: its manifest was modified")
    counts = {"tokens": manifest["tokens"], "supervised": manifest["tokens"], "offsets": manifest["rows"] + 1}
    files = PAIR_FILES if "roles.u8" in manifest["files"] else FILES
    sizes = {name: counts.get(name, manifest["rows"]) * DTYPES[kind].itemsize for name, kind in files.items()}
    for name, kind in files.items():
        path = entry / f"{name}.{kind}"
        if not path.is_file() or path.stat().st_size != sizes[name]:
            raise CorruptEntry(f"{path} is missing or has the wrong size")
        if sum(sizes.values()) <= HASHED_WHEN_OPENED_BYTES:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != manifest["files"][path.name]:
                    raise CorruptEntry(f"{path} was modified")
    return manifest


def _manifest_digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sweep(cache_dir: Path) -> None:
    """Remove what killed processes left staged."""
    for staged in cache_dir.glob(".staged-*"):
        if _is_left(staged):
            shutil.rmtree(staged, ignore_errors=True)


def _is_left(staged: Path) -> bool:
    """Whether nobody builds there any more."""
    try:
        with (staged / LOCK).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no lock there, or none on this file system
        with contextlib.suppress(FileNotFoundError):
            return time.time() - staged.stat().st_mtime > STALE_STAGING_SECONDS
        return False
    return True
