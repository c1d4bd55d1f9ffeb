"""Prepared: rows as tokens and masks, read as they are asked for; it pickles as its path.

Rows are read and not mapped: a map of a file that somebody cuts ends the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loradock.data.cache import BEGINNING, DTYPES, FILES, MARGINS, OPTIONAL
from loradock.data.columns import Contents
from loradock.data.formats.fields import listed
from loradock.data.read import place_of
from loradock.errors import StorageError, shown_place

Array = np.ndarray[Any, Any]
LOOKED_AT_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PreparedSource:
    """One source: its rows are `[start, stop)`; an epoch sees each `weight` times.

    `files`: as messages name them. `contents`: its format, what it holds beside that, and where its files begin.
    `notes`: sentences about which files are read, and how. `remote_files`: name, size and digest of the files of a
    folder of an object store.
    """

    path: str
    start: int
    stop: int
    weight: float
    digest: str
    files: tuple[str, ...]
    contents: Contents
    notes: tuple[str, ...] = ()
    remote_files: Sequence[Mapping[str, Any]] = ()

    def place(self, line: int) -> str:
        """`file:line` of a line counted on over the files (see `lines`)."""
        return shown_place(*place_of(self.files, self.contents.starts, line or None))

    def as_dict(self) -> dict[str, Any]:
        """For the run record."""
        return {
            "path": self.path,
            "rows": self.stop - self.start,
            "sha256": self.digest,
            "weight": self.weight,
            **({"files": [*self.remote_files]} if self.remote_files else {}),
            "format": self.contents.format,
            "unused_columns": [asdict(column) for column in self.contents.unused],
        }

    def told(self) -> list[str]:
        """What is not trained of the source: columns and files that are not read; and how a text file is cut."""
        unused = listed(self.contents.unused)
        columns = [f"{self.path}: columns not used by format {self.contents.format}: {unused}"] if unused else []
        return [*columns, *self.notes]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Rows of one or several sources as tokens, in the order of the files, neither cut nor shuffled.

    A row here is a document; where samples have several (`firsts`), those of one stand together.

    `conversations` of the rows were rendered with the template, the others are raw text. `skipped_rows` more were bad,
    and left out as `data.on_bad_row` says. `date` is what the template
    wrote for today's (None: none), `digest` the sha256 of the tokens and masks themselves. `special_texts` counts the
    special tokens whose text contents hold; `notes` are sentences for the user about how the rows were prepared;
    `has_margins`: some rows have a margin, so that there is a file of them.
    """

    directory: Path
    key: str
    template: str
    rows: int
    tokens: int
    supervised_tokens: int
    sources: tuple[PreparedSource, ...]
    conversations: int
    skipped_rows: int
    date: str | None
    digest: str
    special_texts: dict[str, int]
    notes: tuple[str, ...]
    has_margins: bool

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def offsets(self) -> Array:
        """int64 [rows + 1]: row i is tokens[offsets[i]:offsets[i + 1]]."""
        offsets = self._read("offsets", 0, self.rows + 1)
        if offsets[0] != 0 or offsets[-1] != self.tokens or (np.diff(offsets) < 0).any():
            raise self._lost("offsets.i64", "it was modified")
        return offsets

    @cached_property
    def learned(self) -> Array:
        """int32 [rows]: supervised tokens of each row."""
        return self._read("learned", 0, self.rows)

    @cached_property
    def lines(self) -> Array:
        """int64 [rows]: the line of the source, counted on over its files; below 0 a record's number, 0: none."""
        return self._read("lines", 0, self.rows)

    @cached_property
    def roles(self) -> Array:
        """uint8 [rows]: what each document is in its sample; those of `cache.BEGINNING` begin a sample."""
        return self._read("roles", 0, self.rows)

    @cached_property
    def margins(self) -> Array:
        """float32 [rows]: by how much a pair's chosen answer is better, as its row says of both documents; 0 without.

        Only rows of preferences have some.
        """
        return self._read(MARGINS, 0, self.rows) if self.has_margins else np.zeros(self.rows, dtype=np.float32)

    @cached_property
    def firsts(self) -> Array:
        """int64 [samples]: the first document of each sample."""
        return np.flatnonzero(np.isin(self.roles, BEGINNING)).astype(np.int64)

    def documents_of(self, samples: Array) -> Array:
        """int64, ascending: all documents of these samples (ascending)."""
        firsts = self.firsts
        if len(firsts) == self.rows:
            return samples
        is_taken = np.zeros(len(firsts), dtype=np.bool_)
        is_taken[samples] = True
        return np.flatnonzero(np.repeat(is_taken, np.diff(np.append(firsts, self.rows)))).astype(np.int64)

    def samples_of(self, rows: Array) -> Array:
        """int64, ascending: the samples whose documents `rows` are among."""
        return np.unique(np.searchsorted(self.firsts, rows, side="right") - 1)

    @cached_property
    def _descriptors(self) -> dict[str, int]:
        return {}

    def _read(self, name: str, first: int, stop: int) -> Array:
        """Values `[first, stop)` of a file. StorageError where they are not there any more."""
        kind = (FILES | OPTIONAL)[name]
        file, dtype = f"{name}.{kind}", DTYPES[kind]
        size = (stop - first) * dtype.itemsize
        try:
            if name not in self._descriptors:
                self._descriptors[name] = os.open(self.directory / file, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, _close, self._descriptors[name])
            content = _whole(self._descriptors[name], size, first * dtype.itemsize)
        except OSError as error:
            raise self._lost(file, (error.strerror or str(error)).lower()) from error
        if len(content) < size:
            raise self._lost(file, "it became shorter")
        return np.frombuffer(content, dtype=dtype)

    def _lost(self, file: str, why: str) -> StorageError:
        what = f"prepared rows cannot be read any more: {self.directory / file}: {why}"
        return StorageError(what, hint="the same command prepares them again, and continues from the last checkpoint")

    def row(self, index: int, *, start: int = 0, length: int | None = None, context: int = 1) -> tuple[Array, Array]:
        """Token ids (int32) and mask (bool) of a row from token `start`, cut to `length` tokens where given.

        The first token is never supervised: nothing precedes it that could predict it. Nor are, where the row does not
        begin there, the first `context` tokens: they are learned in the part before.
        """
        first, stop = int(self.offsets[index]) + start, int(self.offsets[index + 1])
        stop = stop if length is None else min(stop, first + length)
        mask = self._read("supervised", first, stop).view(np.bool_)
        if start:
            mask = mask.copy()
            mask[:context] = False
        return self._read("tokens", first, stop), mask

    def tokens_between(self, first: int, stop: int) -> tuple[Array, Array]:
        """Token ids (int32) and mask (uint8) of all rows, from token `first` up to `stop`."""
        return self._read("tokens", first, stop), self._read("supervised", first, stop)

    def first_ids(self) -> set[int]:
        """The token ids that the first rows hold, about a million tokens."""
        return set(np.unique(self._read("tokens", 0, min(self.tokens, LOOKED_AT_TOKENS))).tolist())

    def place(self, index: int) -> str:
        """Where a row came from: `file:line`, or the file where it has no lines."""
        source = next(source for source in self.sources if source.start <= index < source.stop)
        return source.place(int(self.lines[index]))


def _close(descriptor: int) -> None:
    """Of a file that was only read: the kernel frees it whatever it says, and nothing can be lost."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _whole(descriptor: int, size: int, start: int) -> bytes:
    """So many bytes from there, or all that there are; the kernel gives 2 GiB at most in one call."""
    content = os.pread(descriptor, size, start)
    while len(content) < size and (more := os.pread(descriptor, size - len(content), start + len(content))):
        content += more
    return content
