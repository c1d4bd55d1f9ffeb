"""Which rows are trained on, how long each is, and in which order an epoch sees them: indices only, no tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loradock.data.prepared import Prepared
from loradock.errors import ConfigError, DataError

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Int32 = np.ndarray[Any, np.dtype[np.int32]]

_SPLIT, _ORDER, _SHARE = 1, 2, 3


def split(prepared: Prepared, *, validation: float, seed: int) -> tuple[Int64, Int64]:
    """(train rows, validation rows), ascending: a share below 1 or a number of rows, from each source in proportion.

    Raises ConfigError where one side would be empty.
    """
    if validation <= 0:
        return np.arange(prepared.rows, dtype=np.int64), np.zeros(0, dtype=np.int64)
    wanted = max(1, round(validation * prepared.rows)) if validation < 1 else round(validation)
    if wanted >= prepared.rows:
        raise ConfigError(
            f"data.validation: {validation:g} asks for {wanted} of {prepared.rows} rows, which leaves none to train on",
            hint="--set data.validation=0.1, or a separate file",
        )
    is_held_out = np.zeros(prepared.rows, dtype=np.bool_)
    sizes = [source.stop - source.start for source in prepared.sources]
    for index, (source, count) in enumerate(zip(prepared.sources, _proportional(sizes, wanted), strict=True)):
        rng = np.random.default_rng([seed, _SPLIT, index])
        is_held_out[source.start + rng.permutation(source.stop - source.start)[:count]] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _proportional(sizes: list[int], wanted: int) -> list[int]:
    """`wanted` shared out over `sizes` by largest remainder."""
    exact = [wanted * size / sum(sizes) for size in sizes]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda index: counts[index] - exact[index])
    for index in by_remainder[: wanted - sum(counts)]:
        counts[index] += 1
    return counts


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Rows cut or dropped to `max_length`; `rows`, `lengths` and `learned` go together, [kept rows] each.

    `rows` (int64) index the prepared data, `lengths` and `learned` (int32) count tokens and supervised tokens after
    truncation. `lost_tokens` counts what truncation cuts off and what dropped rows held; `dropped` are the over-long
    rows left out, of which `nothing_learned` because no supervised token is left inside `max_length`.
    """

    rows: Int64
    lengths: Int32
    learned: Int32
    max_length: int
    over_long: int
    dropped: int
    nothing_learned: int
    lost_tokens: int
    lost_supervised_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of one pass over the kept rows."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens of one pass over the kept rows."""
        return int(self.learned.sum(dtype=np.int64))


def fit(
    prepared: Prepared, *, rows: Int64, max_length: int, long_rows: Literal["truncate", "drop"] = "truncate"
) -> Fitted:
    """Cut or drop the rows longer than `max_length` tokens. DataError where no row is left."""
    rows = np.asarray(rows, dtype=np.int64)
    full = (prepared.offsets[rows + 1] - prepared.offsets[rows]).astype(np.int64)
    learned = np.array(prepared.learned[rows], dtype=np.int32)
    tokens_before, supervised_before = int(full.sum()), int(learned.sum(dtype=np.int64))
    is_long = full > max_length
    lengths = np.minimum(full, max_length).astype(np.int32)
    for index in np.flatnonzero(is_long):
        _, mask = prepared.row(int(rows[index]), length=max_length)
        learned[index] = np.count_nonzero(mask)
    is_kept = ~is_long if long_rows == "drop" else learned > 0
    if rows.size and not is_kept.any():
        raise DataError(
            f"every row is longer than {max_length} tokens and none would have a supervised token",
            hint=f"--set data.max_length={int(full.max())}",
        )
    rows, lengths, kept_learned = rows[is_kept], lengths[is_kept], learned[is_kept]
    return Fitted(
        rows=rows,
        lengths=lengths,
        learned=kept_learned,
        max_length=max_length,
        over_long=int(is_long.sum()),
        dropped=int((~is_kept).sum()),
        nothing_learned=int((learned == 0).sum()),
        lost_tokens=tokens_before - int(lengths.sum(dtype=np.int64)),
        lost_supervised_tokens=supervised_before - int(kept_learned.sum(dtype=np.int64)),
    )


class EpochOrder:
    """The order of samples in each epoch: one permutation over all sources, each row as often as its weight says.

    A weight of 2 shows a row twice, 0.5 a random half of the source and the other half in the next epoch. Every epoch
    has the same number of samples, `len(order)`. Samples are positions in `fitted`.
    """

    def __init__(self, prepared: Prepared, *, fitted: Fitted, seed: int) -> None:
        self._seed = seed
        self._parts: list[tuple[int, int, int, int]] = []
        for source in prepared.sources:
            start, stop = (int(i) for i in np.searchsorted(fitted.rows, [source.start, source.stop]))
            whole = int(source.weight)
            extra = round((source.weight - whole) * (stop - start))
            if whole == 0 and stop > start:
                extra = max(1, extra)
            self._parts.append((start, stop, whole, extra))

    def __len__(self) -> int:
        return sum((stop - start) * whole + extra for start, stop, whole, extra in self._parts)

    def __call__(self, epoch: int) -> Int64:
        """Positions in the fitted rows, int64 [len(self)], in the order of this epoch (from 0)."""
        seen: list[Int64] = []
        for index, (start, stop, whole, extra) in enumerate(self._parts):
            positions = np.arange(start, stop, dtype=np.int64)
            seen += [positions] * whole
            if extra:
                seen.append(positions[self._share(index, size=stop - start, extra=extra, epoch=epoch)])
        order = np.concatenate(seen) if seen else np.zeros(0, dtype=np.int64)
        return np.random.default_rng([self._seed, _ORDER, epoch]).permutation(order)

    def _share(self, index: int, *, size: int, extra: int, epoch: int) -> Int64:
        """`extra` of `size` rows: disjoint shares of one permutation, then of a fresh one when it is used up."""
        cycle, share = divmod(epoch, size // extra)
        order = np.random.default_rng([self._seed, _SHARE, index, cycle]).permutation(size)
        return order[share * extra : (share + 1) * extra]
