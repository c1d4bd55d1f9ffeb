"""Which prepared samples a run takes at all, before any is held out: none too short, none a copy of an earlier one.

A sample is known by 16 bytes of a hash of its documents' token ids, masks and roles: of ten million, two different ones
have the same hash with a probability of 1e-25. So a copy is what trains alike, whatever its file, format or columns.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np

from loradock.data.cache import FIRST
from loradock.data.prepared import Prepared
from loradock.errors import DataError

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Deduplicate = Literal["off", "exact"]
DIGEST_BYTES = 16
BLOCK_TOKENS = 1 << 22
PLACES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The `samples` that are left, as places among all (int64, ascending); how many are left out, and why.

    `copy_places`: where the first of the copies stand, and what they repeat.
    """

    samples: Int64
    short: int = 0
    copies: int = 0
    copy_places: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, prepared: Prepared, *, min_tokens: int = 0, deduplicate: Deduplicate = "off", max_dropped: float = 1.0
    ) -> Self:
        """Those whose documents all have `min_tokens` tokens; of equal ones the first.

        DataError where a larger share than `max_dropped` is too short.
        """
        first = prepared.firsts
        edges = np.append(first, prepared.rows)
        shortest = np.minimum.reduceat(np.diff(prepared.offsets), first)
        samples = np.flatnonzero(shortest >= min_tokens)
        short = len(first) - len(samples)
        _check_short(short, of=len(first), min_tokens=min_tokens, max_dropped=max_dropped)
        if deduplicate == "off":
            return cls(samples=samples, short=short)
        originals = earliest(_digests(prepared, edges)[samples])
        is_copy = originals != np.arange(len(samples))
        pairs = zip(samples[is_copy][:PLACES_SHOWN], samples[originals[is_copy]][:PLACES_SHOWN], strict=True)
        return cls(
            samples=samples[~is_copy],
            short=short,
            copies=int(np.count_nonzero(is_copy)),
            copy_places=tuple(f"{prepared.place(int(first[a]))} = {prepared.place(int(first[b]))}" for a, b in pairs),
        )

    def notes(self, *, min_tokens: int) -> Iterator[str]:
        """What is reported of what is left out."""
        if self.short:
            yield f"rows of fewer than {min_tokens} tokens: {self.short:,} left out (data.min_tokens)"
        if self.copies:
            places = "; ".join(self.copy_places)
            yield f"exact copies of earlier rows: {self.copies:,} left out (data.deduplicate exact): {places}"


def _check_short(short: int, *, of: int, min_tokens: int, max_dropped: float) -> None:
    share = short / max(1, of)
    if share <= max_dropped and short < of:
        return
    allowed = f"; or allow it: --set data.max_dropped={math.ceil(share * 100) / 100:g}" if short < of else ""
    raise DataError(
        f"{short:,} of {of:,} rows ({share:.1%}) have fewer than {min_tokens} tokens (data.min_tokens); "
        f"data.max_dropped allows {max_dropped:.0%} to be left out",
        hint=f"a smaller data.min_tokens (`loradock data stats` shows the lengths){allowed}",
    )


def _digests(prepared: Prepared, edges: Int64) -> np.ndarray[Any, Any]:
    """uint64 [samples, 2]: of each sample, whose documents are `[edges[i], edges[i + 1])`; read block by block."""
    values = bytearray()
    starts = prepared.offsets[edges]
    first = 0
    while first < len(edges) - 1:
        stop = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK_TOKENS, side="right")) - 1)
        ids, mask = prepared.tokens_between(int(starts[first]), int(starts[stop]))
        block = (ids.data.cast("B"), mask.data.cast("B"))
        bounds = (starts[first : stop + 1] - starts[first]).tolist()
        documents = edges[first : stop + 1].tolist()
        for index, (begin, end) in enumerate(pairwise(bounds)):
            digest = hashlib.blake2b(block[0][4 * begin : 4 * end], digest_size=DIGEST_BYTES)
            digest.update(block[1][begin:end])
            if documents[index + 1] - documents[index] > 1 or prepared.roles[documents[index]] != FIRST:
                inner = slice(documents[index], documents[index + 1])
                digest.update(prepared.roles[inner].tobytes() + np.diff(prepared.offsets[inner]).tobytes())
            values += digest.digest()
        first = stop
    return np.frombuffer(values, dtype=np.uint64).reshape(-1, 2)


def earliest(digests: np.ndarray[Any, Any]) -> Int64:
    """int64 [samples]: the place of the first sample with the same digest (uint64 [samples, 2])."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones stay in their order
    ordered = digests[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = order[is_new]
    originals = np.empty(len(order), dtype=np.int64)
    originals[order] = firsts[np.cumsum(is_new) - 1]
    return originals
