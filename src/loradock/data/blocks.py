"""Blocks of rows that were prepared before, taken from an earlier entry of the cache whatever changed around them.

A block ends behind a row whose own digest says so (content-defined chunking, as rsync and LBFS cut files), so that a
row that is added, changed or removed makes one block or two new ones and leaves the others as they were. An entry's
`blocks.json` says where each of its blocks lies, by the digest of its samples.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from loradock.data.cache import (
    BEGINNING,
    BLOCKS,
    DTYPES,
    FILES,
    MARGINS,
    OPTIONAL,
    Chunk,
    CorruptEntry,
    has_margins,
    read_manifest,
)
from loradock.data.pool import Block, Done, Row
from loradock.data.spans import Remark
from loradock.files import regular

MOST_ROWS = 1024
MOST_CHARACTERS = 1 << 20
MOST_ENTRIES = 8
"""Of those made in the same way the latest are looked through."""


def blocks(rows: Iterable[Row]) -> Iterator[Block]:
    """Rows in blocks of 256 on average, of bounded size."""
    block: list[Row] = []
    characters = 0
    digest = hashlib.sha256()
    for line, sample in rows:
        row_digest = hashlib.sha256(pickle.dumps(sample, protocol=5)).digest()
        block.append((line, sample))
        digest.update(row_digest)
        characters += sum(map(len, sample.texts))
        if row_digest[0] == 0 or len(block) >= MOST_ROWS or characters >= MOST_CHARACTERS:
            yield Block(rows=block, digest=digest.hexdigest())
            block, characters, digest = [], 0, hashlib.sha256()
    if block:
        yield Block(rows=block, digest=digest.hexdigest())


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a block lies in its entry, and what was counted of it: see `cache.Chunk`."""

    digest: str
    row: int
    rows: int
    token: int
    tokens: int
    conversations: int
    special_texts: dict[str, int]
    remarks: list[tuple[str, str, int]]
    cut: int

    @classmethod
    def of(cls, result: Done, *, row: int, token: int) -> Place | None:
        """The place of a block that is written from `row` and `token` on; None where it cannot be taken from there.

        It cannot where a row was refused.
        """
        chunk = result.chunk
        if result.refused or not np.array_equal(_lines(result.block.rows, chunk.roles), chunk.lines):
            return None
        return cls(
            digest=result.block.digest,
            row=row,
            rows=len(chunk.lengths),
            token=token,
            tokens=len(chunk.ids),
            conversations=chunk.conversations,
            special_texts=dict(chunk.special_texts),
            remarks=[(remark.name, remark.detail, count) for remark, count in chunk.remarks.items()],
            cut=chunk.cut,
        )


PLACES = TypeAdapter(list[Place])


def _lines(rows: list[Row], roles: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """int64 [documents]: the line of each document's sample."""
    of_samples = np.array([line or 0 for line, _ in rows], dtype=np.int64)
    samples = np.cumsum(np.isin(roles, BEGINNING)) - 1
    return of_samples[samples] if len(samples) and samples[-1] + 1 == len(rows) else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What earlier entries hold: their blocks by digest; `with_margins` are the entries that have a file of them."""

    places: Mapping[str, tuple[Path, Place]] = field(default_factory=dict[str, tuple[Path, Place]])
    with_margins: frozenset[Path] = frozenset()

    @classmethod
    def of(cls, cache_dir: Path, *, maker: str) -> Earlier:
        """The blocks of the latest entries that were made by `maker`; one that is broken is passed by."""
        places: dict[str, tuple[Path, Place]] = {}
        with_margins: set[Path] = set()
        for entry in _made_by(maker, cache_dir):
            with suppress(CorruptEntry, OSError, ValidationError):
                manifest = read_manifest(entry)
                content = regular.read(entry / BLOCKS)
                if hashlib.sha256(content).hexdigest() == manifest["blocks"]:
                    known = PLACES.validate_json(content)
                    places.update((place.digest, (entry, place)) for place in known if place.digest not in places)
                    if has_margins(manifest):
                        with_margins.add(entry)
        return cls(places=places, with_margins=frozenset(with_margins))

    def chunk(self, block: Block) -> Chunk | None:
        """The block as it was prepared, with the lines that it has now; None where it was not, or is gone."""
        known = self.places.get(block.digest)
        if known is None:
            return None
        entry, place = known
        try:
            documents = {name: _part(entry, name, place.row, place.rows) for name in ("learned", "roles")}
            texts = {name: _part(entry, name, place.token, place.tokens) for name in ("tokens", "supervised")}
            offsets = _part(entry, "offsets", place.row, place.rows + 1)
            margins = _part(entry, MARGINS, place.row, place.rows) if entry in self.with_margins else None
        except OSError:
            return None
        return Chunk(
            ids=texts["tokens"],
            supervised=texts["supervised"],
            lengths=np.diff(offsets).astype(np.int32),
            learned=documents["learned"],
            lines=_lines(block.rows, documents["roles"]),
            roles=documents["roles"],
            conversations=place.conversations,
            special_texts=Counter(place.special_texts),
            remarks=Counter({Remark(name, detail): count for name, detail, count in place.remarks}),
            cut=place.cut,
            margins=margins if margins is not None and margins.any() else None,
        )


def _made_by(maker: str, cache_dir: Path) -> list[Path]:
    """The latest entries whose manifest says so."""
    entries: list[tuple[int, Path]] = []
    with suppress(OSError):
        for entry in os.scandir(cache_dir):
            manifest = Path(entry.path, "manifest.json")
            with suppress(OSError, ValueError, RecursionError, AttributeError):
                if manifest.is_file() and json.loads(regular.read(manifest)).get("maker") == maker:
                    entries.append((manifest.stat().st_mtime_ns, Path(entry.path)))
    return [entry for _, entry in sorted(entries, reverse=True)[:MOST_ENTRIES]]


def _part(entry: Path, name: str, first: int, count: int) -> np.ndarray[Any, Any]:
    """`count` values of a file of an entry. OSError where they are not there."""
    kind = (FILES | OPTIONAL)[name]
    size = DTYPES[kind].itemsize
    with regular.opened(entry / f"{name}.{kind}") as file:
        file.seek(first * size)
        values = np.frombuffer(file.read(count * size), dtype=DTYPES[kind])
    if len(values) != count:
        raise OSError(f"{entry / name} was cut off")
    return values
