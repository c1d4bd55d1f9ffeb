"""Which rows are trained on, how long each is, and in which order an epoch sees them: indices only, no tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from loradock.data.prepared import Prepared
from loradock.errors import ConfigError, DataError

Int64 = np.ndarray[Any, np.dtype[np.int64]]
Int32 = np.ndarray[Any, np.dtype[np.int32]]
LongRows = Literal["split", "truncate", "drop"]
Part = tuple[int, int, int, int, int]
"""Row, first token, tokens, supervised tokens, tokens of context that are learned in the part before."""
UNCUT_TOKENS = int(np.iinfo(np.int32).max)
"""As `max_length` of a corpus: no row is as long."""
FRAME_TOKENS = 2
"""What a tokenizer puts before a text (BOS, and a mask token of some): a document that is learned but for so many is
text, with nothing in it that is only asked."""

ONE_ROW = "--set data.validation=0, or a separate file: one row cannot be held out and trained on"
_SPLIT, _ORDER, _SHARE = 1, 2, 3


def split(
    prepared: Prepared,
    *,
    validation: float,
    seed: int,
    samples: Int64 | None = None,
    groups: Callable[[Int64], Int64] | None = None,
) -> tuple[Int64, Int64]:
    """(training samples, validation samples), ascending: a share below 1 or a number, from each source in proportion.

    A sample is a row, whose documents stay together (`prepared.firsts`). `samples` (ascending): those that there are to
    divide, else all. `groups`: a number of each, equal for samples of one source that stay together; with it as many
    are held out as are asked for, or the rest of a group more. Raises ConfigError where one side would be empty.
    """
    firsts = prepared.firsts
    samples = np.arange(len(firsts), dtype=np.int64) if samples is None else samples
    if validation <= 0:
        return samples, np.zeros(0, dtype=np.int64)
    wanted = max(1, round(validation * len(samples))) if validation < 1 else round(validation)
    if wanted >= len(samples):
        raise ConfigError(
            f"data.validation: {validation:g} asks for {wanted} of {len(samples)} rows, which leaves none to train on",
            hint="--set data.validation=0.1, or a separate file" if len(samples) > 1 else ONE_ROW,
        )
    is_held_out = np.zeros(len(samples), dtype=np.bool_)
    starts = np.searchsorted(firsts[samples], [source.start for source in prepared.sources]).tolist()
    sizes = [stop - start for start, stop in pairwise([*starts, len(samples)])]
    for index, (start, size, count) in enumerate(zip(starts, sizes, _proportional(sizes, wanted), strict=True)):
        rng = np.random.default_rng([seed, _SPLIT, index])
        if groups:
            is_held_out[start : start + size] = _of_whole_groups(groups(samples[start : start + size]), count, rng)
        else:
            is_held_out[start + rng.permutation(size)[:count]] = True
    if is_held_out.all():
        what = f"data.validation: {validation:g} asks for {wanted} of {len(samples)} rows, which all belong together"
        raise ConfigError(what, hint=ONE_ROW)
    return samples[~is_held_out], samples[is_held_out]


def _of_whole_groups(groups: Int64, wanted: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Bool [samples]: those of whole groups, drawn until there are as many as are wanted."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = rng.permutation(len(sizes))
    before = np.cumsum(sizes[order]) - sizes[order]
    is_taken = np.zeros(len(sizes), dtype=np.bool_)
    is_taken[order[before < wanted]] = True
    return is_taken[group]


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
    """Samples of at most `max_length` tokens; `rows`, `starts`, `lengths`, `learned` and `contexts`: [samples] each.

    `rows` (int64) index the prepared data. A sample is the `lengths` tokens (int32) from token `starts` (int32) of its
    row, of which `learned` (int32) are supervised; where it does not begin a row, its first `contexts` tokens (int32)
    are learned in the sample before. `over_long` counts rows beyond the length; `dropped` are those of
    them that are left out whole, of which `nothing_learned` because no supervised token lies in what would be kept.
    `lost_tokens` counts the tokens that are in no sample.
    """

    rows: Int64
    starts: Int32
    lengths: Int32
    learned: Int32
    contexts: Int32
    max_length: int
    over_long: int
    dropped: int
    nothing_learned: int
    lost_tokens: int
    lost_supervised_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of one pass over the samples."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def supervised_tokens(self) -> int:
        """Supervised tokens of one pass over the samples."""
        return int(self.learned.sum(dtype=np.int64))

    @property
    def overlapped(self) -> tuple[int, int]:
        """How many rows have windows with more context than the one token that each needs, and its tokens."""
        more = self.contexts > 1
        return len(np.unique(self.rows[more])), int(self.contexts[more].sum(dtype=np.int64))


def fit(prepared: Prepared, *, rows: Int64, max_length: int, long_rows: LongRows = "split", overlap: int = 0) -> Fitted:
    """Split, cut or drop the rows longer than `max_length` tokens. DataError where no sample is left.

    Windows of documents of text begin with `overlap` tokens of the one before, as context.
    """
    if overlap >= max_length:
        what = f"data.overlap {overlap} leaves nothing to learn in windows of {max_length} tokens"
        raise DataError(what, hint=f"--set data.overlap={max_length // 8}")
    rows = np.asarray(rows, dtype=np.int64)
    full = (prepared.offsets[rows + 1] - prepared.offsets[rows]).astype(np.int64)
    learned = np.array(prepared.learned[rows], dtype=np.int64)
    is_long = full > max_length
    parts: list[Part] = []
    nothing_learned = lost_tokens = left_out = 0
    contexts = np.where(full - learned <= FRAME_TOKENS, max(1, overlap), 1)
    for row, length, context in zip(
        rows[is_long].tolist(), full[is_long].tolist(), contexts[is_long].tolist(), strict=True
    ):
        useful = [part for part in windows(prepared, row, length, max_length, long_rows, context) if part[3]]
        nothing_learned += not useful
        kept = [] if long_rows == "drop" else useful
        left_out += not kept
        lost_tokens += length - covered(kept)
        parts += kept
    nothing = np.zeros_like(rows)
    whole = np.stack([rows, nothing, full, learned, nothing])[:, ~is_long & (learned > 0)]
    samples = np.concatenate([whole, np.array(parts, dtype=np.int64).reshape(-1, 5).T], axis=1)
    samples = samples[:, np.lexsort((samples[1], samples[0]))]
    if rows.size and not samples.size:
        raise DataError(
            f"every row is longer than {max_length} tokens and none would have a supervised token",
            hint="--set data.max_length=auto" if long_rows == "split" else "--set data.long_rows=split",
        )
    return Fitted(
        rows=samples[0],
        starts=samples[1].astype(np.int32),
        lengths=samples[2].astype(np.int32),
        learned=samples[3].astype(np.int32),
        contexts=samples[4].astype(np.int32),
        max_length=max_length,
        over_long=int(is_long.sum()),
        dropped=left_out,
        nothing_learned=nothing_learned,
        lost_tokens=lost_tokens,
        lost_supervised_tokens=int(learned.sum() - samples[3].sum()),
    )


def windows(
    prepared: Prepared, row: int, length: int, max_length: int, long_rows: LongRows, context: int = 1
) -> list[Part]:
    """The parts of a row of `length` tokens, which is longer than allowed.

    Windows reach back from the row's end, so that an answer has what comes before it; each begins with the last
    `context` tokens of the one before, which are not learned there, so that every supervised token is learned once.
    """
    if long_rows != "split":
        spans = [(0, max_length)]
    else:
        stops = range(length, context, -max(1, max_length - context))
        spans = [(max(0, stop - max_length), stop) for stop in reversed(stops)]
    found: list[Part] = []
    for start, stop in spans:
        _, mask = prepared.row(row, start=start, length=stop - start, context=context)
        found.append((row, start, stop - start, int(np.count_nonzero(mask)), context if start else 0))
    return found


def covered(parts: Sequence[Part]) -> int:
    """Tokens of a row that are in one of its parts, given in order."""
    reached = total = 0
    for _, start, length, *_ in parts:
        total += max(0, start + length - max(reached, start))
        reached = start + length
    return total


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
