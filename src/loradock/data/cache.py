"""Prepared samples on disk: flat files, staged beside their place and renamed into it.

An entry is a directory named by its key::

    tokens.i32      int32   [tokens]    token ids of all documents, one after the other
    supervised.u8   uint8   [tokens]    1 where the token is learned, or pooled of a document to embed
    offsets.i64     int64   [rows + 1]  where each document begins in tokens
    learned.i32     int32   [rows]      supervised tokens of each document
    lines.i64       int64   [rows]      line of the source, counted on over its files; minus the number of a record that
                                        shares its line with others; 0 where there is none
    roles.u8        uint8   [rows]      what the document is in its sample; one that is BEGINNING begins a sample
    margins.f32     float32 [rows]      by how much a pair's chosen answer is better; where no row says so there is none
    manifest.json                       counts, rows per source, sha256 of every file and of itself
    blocks.json                         where each block of rows lies, for an entry of other rows: see `blocks`
    verified.json                       of a large entry: which files were hashed, by size, time and inode
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from loradock.data.manifest import Manifest
from loradock.data.spans import Remark
from loradock.errors import DiskFull, LoradockError, NotWritable, StorageError
from loradock.files import atomic_io, regular, staged

FILES = {"tokens": "i32", "supervised": "u8", "offsets": "i64", "learned": "i32", "lines": "i64", "roles": "u8"}
FIRST, UNDESIRABLE = 0, 255
"""The roles of documents that begin a sample: a row has no other. UNDESIRABLE is an answer that is labelled so."""
BEGINNING = (FIRST, UNDESIRABLE)
MARGINS = "margins"
OPTIONAL = {MARGINS: "f32"}
"""Files that an entry has where its rows give them something to hold."""
DTYPES = {"f32": np.dtype("<f4"), "i32": np.dtype("<i4"), "i64": np.dtype("<i8"), "u8": np.dtype("u1")}
HASHED_WHEN_OPENED_BYTES = 256 << 20
VERIFIED = "verified.json"
BLOCKS = "blocks.json"


class CorruptEntry(Exception):
    """A cache entry that is partial or was changed; the message says how."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive prepared documents: ids int32 [tokens], supervised uint8 [tokens], the other arrays [rows].

    `roles` uint8 [rows]: what each document is in its sample; a row is a sample of one. `conversations` of the rows
    were rendered with the chat template, the others are raw text. `special_texts` counts the special tokens whose text
    their contents hold, `remarks` the rows that something is told of. `cut` documents were too long. `margins` float32
    [rows]: of pairs whose rows give some.
    """

    ids: np.ndarray[Any, Any]
    supervised: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    learned: np.ndarray[Any, Any]
    lines: np.ndarray[Any, Any]
    roles: np.ndarray[Any, Any]
    conversations: int
    special_texts: Counter[str]
    remarks: Counter[Remark] = field(default_factory=Counter)
    cut: int = 0
    margins: np.ndarray[Any, Any] | None = None

    @property
    def samples(self) -> int:
        """How many samples begin in it."""
        return int(np.isin(self.roles, BEGINNING).sum())


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

    def __init__(self, cache_dir: Path, *, key: str) -> None:
        self._target = cache_dir / key
        self.rows = 0
        self.tokens = 0
        self.learned_tokens = 0
        self.samples = 0
        self._digests = {name: hashlib.sha256() for name in FILES}
        self._kinds = dict(FILES)
        with writing(cache_dir), contextlib.ExitStack() as around:
            self._staged = around.enter_context(staged.in_cache(cache_dir)) / key
            self._staged.mkdir()
            self._streams = {
                name: (self._staged / f"{name}.{kind}").open("wb", buffering=1 << 20) for name, kind in FILES.items()
            }
            self._around = around.pop_all()
        self._put("offsets", np.zeros(1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        self._around.close()

    def write(self, chunk: Chunk) -> None:
        """Append rows. Raises DiskFull, NotWritable or StorageError."""
        self._put("tokens", chunk.ids)
        self._put("supervised", chunk.supervised)
        self._put("offsets", self.tokens + np.cumsum(chunk.lengths, dtype=np.int64))
        self._put("learned", chunk.learned)
        self._put("lines", chunk.lines)
        self._put("roles", chunk.roles)
        self._put_margins(chunk)
        self.rows += len(chunk.lengths)
        self.tokens += len(chunk.ids)
        self.learned_tokens += int(chunk.learned.sum())
        self.samples += chunk.samples

    def _put_margins(self, chunk: Chunk) -> None:
        """The file begins with the first rows that have some, and zeros for those before."""
        if MARGINS not in self._streams:
            if chunk.margins is None:
                return
            self._kinds |= OPTIONAL
            self._digests[MARGINS] = hashlib.sha256()
            with writing(self._target.parent):
                self._streams[MARGINS] = (self._staged / f"{MARGINS}.{OPTIONAL[MARGINS]}").open("wb")
            self._put(MARGINS, np.zeros(self.rows))
        self._put(MARGINS, np.zeros(len(chunk.lengths)) if chunk.margins is None else chunk.margins)

    def _put(self, name: str, values: np.ndarray[Any, Any]) -> None:
        data = np.ascontiguousarray(values, dtype=DTYPES[self._kinds[name]]).data
        self._digests[name].update(data)
        with writing(self._target.parent):
            self._streams[name].write(data)

    def commit(self, *, blocks: bytes, **facts: Any) -> dict[str, Any]:
        """Make the entry durable and visible under its key, with `facts` in its manifest, which is returned.

        `blocks`: the content of BLOCKS.

        Where another process put the same entry there first, that one stays.
        """
        manifest = {
            **facts,
            "rows": self.rows,
            "tokens": self.tokens,
            "learned_tokens": self.learned_tokens,
            "samples": self.samples,
            "files": {f"{name}.{kind}": self._digests[name].hexdigest() for name, kind in self._kinds.items()},
            "blocks": hashlib.sha256(blocks).hexdigest(),
        }
        with writing(self._target.parent):
            for stream in self._streams.values():
                stream.flush()
                os.fsync(stream.fileno())
                stream.close()
            atomic_io.write(self._staged / BLOCKS, blocks)
            sealed = json.dumps({**manifest, "sha256": _manifest_digest(manifest)}, indent=1)
            atomic_io.write(self._staged / "manifest.json", sealed.encode())
            atomic_io.sync_folder(self._staged)
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
        atomic_io.sync_folder(self._target.parent)


def discard(entry: Path) -> None:
    """Remove an entry: first out of its place in one step, so that nobody opens half of it."""
    with staged.in_cache(entry.parent) as aside, contextlib.suppress(FileNotFoundError):
        os.rename(entry, aside / entry.name)


def read_manifest(entry: Path) -> dict[str, Any]:
    """The manifest of a sound entry. CorruptEntry where a file is missing, short, or not what was written.

    Contents are hashed each time up to HASHED_WHEN_OPENED_BYTES in all; those of a larger entry once, and again where a
    file has another size, time or inode than it had then.
    """
    claimed, manifest = _sealed(entry / "manifest.json")
    rows, tokens = manifest["rows"], manifest["tokens"]
    counts = {"tokens": tokens, "supervised": tokens, "offsets": rows + 1}
    kinds = FILES | {name: kind for name, kind in OPTIONAL.items() if f"{name}.{kind}" in manifest["files"]}
    if manifest["files"].keys() != {f"{name}.{kind}" for name, kind in kinds.items()}:
        raise CorruptEntry(f"{entry}: its manifest names other files")
    sizes = {
        f"{name}.{kind}": counts.get(name, manifest["rows"]) * DTYPES[kind].itemsize for name, kind in kinds.items()
    }
    stamps = {name: _stamp(entry / name, size) for name, size in sizes.items()}
    seal = {"sha256": claimed, "files": stamps}
    is_large = sum(sizes.values()) > HASHED_WHEN_OPENED_BYTES
    if is_large and _verified(entry) == seal:
        return manifest
    for name, digest in manifest["files"].items():
        with regular.opened(entry / name) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise CorruptEntry(f"{entry / name} was modified")
    if is_large:
        _note_verified(entry, seal)
    return manifest


def has_margins(manifest: Mapping[str, Any]) -> bool:
    """Whether an entry has the file of margins, as its manifest says."""
    return f"{MARGINS}.{OPTIONAL[MARGINS]}" in manifest["files"]


def _sealed(file: Path) -> tuple[str, dict[str, Any]]:
    """The digest of a manifest and what it holds. CorruptEntry where it is none, or another's."""
    try:
        if not file.is_file():  # a pipe would be waited for
            raise CorruptEntry(f"{file} is missing")
        manifest = json.loads(regular.read(file))
        claimed = manifest.pop("sha256")
        digest = _manifest_digest(manifest)
        kept = Manifest.model_validate(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptEntry(f"{file.parent}: no readable manifest: {error}") from error
    if claimed != digest:
        raise CorruptEntry(f"{file.parent}: its manifest was modified")
    if kept.key != file.parent.name:
        raise CorruptEntry(f"{file.parent}: its manifest is that of {kept.key}")
    return claimed, manifest


def _stamp(path: Path, size: int) -> list[int]:
    """Size, time and inode of a file; CorruptEntry where it is none of that size."""
    try:
        found = path.lstat()
    except OSError as error:
        raise CorruptEntry(f"{path} is missing: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise CorruptEntry(f"{path} has the wrong size")
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _verified(entry: Path) -> object:
    """What was noted of the entry when its files were last hashed."""
    file = entry / VERIFIED
    try:
        return json.loads(regular.read(file)) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


def _note_verified(entry: Path, seal: dict[str, Any]) -> None:
    """Note it; where that cannot be written, the next start hashes again."""
    with contextlib.suppress(OSError):
        atomic_io.replace(entry / VERIFIED, json.dumps(seal))


def _manifest_digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
