"""Prepared: rows as tokens and masks, read through memory maps; it pickles as its path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loradock.data.cache import DTYPES, FILES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class PreparedSource:
    """One source: its rows are `[start, stop)`; an epoch sees each `weight` times."""

    path: str
    start: int
    stop: int
    weight: float
    digest: str


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Rows of one or several sources as tokens, in the order of the files, neither cut nor shuffled.

    `conversations` of the rows were rendered with the template, the others are raw text. `date` is what the template
    wrote for today's (None: none), `digest` the sha256 of the tokens and masks themselves. `special_texts` counts the
    special tokens whose text contents hold; `notes` are sentences for the user about how the rows were prepared.
    """

    directory: Path
    key: str
    template: str
    rows: int
    tokens: int
    supervised_tokens: int
    sources: tuple[PreparedSource, ...]
    conversations: int
    date: str | None
    digest: str
    special_texts: dict[str, int]
    notes: tuple[str, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def offsets(self) -> Array:
        """int64 [rows + 1]: row i is tokens[offsets[i]:offsets[i + 1]]."""
        return self._map("offsets")

    @cached_property
    def learned(self) -> Array:
        """int32 [rows]: supervised tokens of each row."""
        return self._map("learned")

    @cached_property
    def lines(self) -> Array:
        """int64 [rows]: the line of the source that each row came from, -1 where it has none."""
        return self._map("lines")

    @cached_property
    def _tokens(self) -> Array:
        return self._map("tokens")

    @cached_property
    def _supervised(self) -> Array:
        return self._map("supervised")

    def _map(self, name: str) -> Array:
        path = self.directory / f"{name}.{FILES[name]}"
        dtype = DTYPES[FILES[name]]
        return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype=dtype)

    def row(self, index: int, *, length: int | None = None) -> tuple[Array, Array]:
        """Token ids (int32) and mask (bool) of a row, cut to `length` tokens where given: [tokens] each."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        stop = stop if length is None else min(stop, start + length)
        return self._tokens[start:stop], self._supervised[start:stop].view(np.bool_)

    def place(self, index: int) -> str:
        """Where a row came from: `file:line`, or the file where it has no lines."""
        source = next(source for source in self.sources if source.start <= index < source.stop)
        line = int(self.lines[index])
        return source.path if line < 0 else f"{source.path}:{line}"
