"""Optimiser steps: which rows each one sees, in which micro-batches, on which rank. The data cursor is the step."""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loradock.data.collate import MicroBatch, PairBatch
from loradock.data.prepared import Prepared
from loradock.data.select import EpochOrder, Fitted
from loradock.errors import DataError

Int64 = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One optimiser step as one rank sees it.

    `micro_batches` are this rank's; `samples`, `tokens`, `supervised_tokens` and `row_ids` (int64, in order) are those
    of the whole step over all ranks: the loss is divided by `supervised_tokens`. `rows` of
    the samples are answered, and `pairs` are the documents to embed
    beside them, of an objective that does.
    """

    index: int
    epoch: int
    micro_batches: tuple[MicroBatch, ...]
    samples: int
    tokens: int
    supervised_tokens: int
    row_ids: Int64
    rows: int = 0
    pairs: PairBatch | None = None


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """How samples become micro-batches: at most `micro_batch` samples, or packed `micro_batch * max_length` tokens."""

    micro_batch: int
    packing: bool
    max_length: int

    def groups(self, lengths: Sequence[int], *, processes: int = 1) -> list[tuple[int, int]]:
        """`[first, last)` of each micro-batch: samples stay in order, and none is split.

        Of several `processes` each takes one in turn and waits for the one with the most; so of all limits that need
        no turn more, the smallest is taken.
        """
        if not self.packing:
            lengths, limit = [1] * len(lengths), self.micro_batch
        else:
            limit = self.micro_batch * self.max_length
        groups = filled(lengths, limit=limit)
        if processes == 1 or not groups:
            return groups
        turns = math.ceil(len(groups) / processes)
        limits = range(max(lengths), limit + 1)
        smallest = bisect_left(limits, True, key=lambda tried: len(filled(lengths, limit=tried)) <= turns * processes)
        return filled(lengths, limit=limits[smallest]) if smallest < len(limits) else groups


def filled(sizes: Sequence[int], *, limit: int) -> list[tuple[int, int]]:
    """`[first, last)` of each group: the next size goes in while the sum stays within the limit, or it is alone."""
    groups: list[tuple[int, int]] = []
    first = used = 0
    for index, size in enumerate(sizes):
        if used + size > limit and index > first:
            groups.append((first, index))
            first, used = index, 0
        used += size
    return [*groups, (first, len(sizes))] if len(sizes) else []


class TrainSteps:
    """All optimiser steps of a run, by number and in constant time, so that a run resumes at any of them.

    Step k of an epoch sees samples `[k * global_batch, (k + 1) * global_batch)` of its order; the last of an epoch may
    be smaller. The samples of a step depend neither on packing nor on micro-batches nor on the number of ranks.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        fitted: Fitted,
        global_batch: int,
        micro_batch: int,
        packing: bool,
        seed: int,
        total_steps: int,
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        self._prepared = prepared
        self._fitted = fitted
        self._global_batch = global_batch
        self._shape = BatchShape(micro_batch=micro_batch, packing=packing, max_length=fitted.max_length)
        self._order = EpochOrder(prepared, fitted=fitted, seed=seed)
        if not len(self._order):
            raise DataError("there is no row to train on", hint="--set data.sources=FILE with at least one row")
        self._total_steps = total_steps
        self._world_size, self._rank = world_size, rank
        self._epoch_held: tuple[int, Int64] | None = None

    @property
    def samples_per_epoch(self) -> int:
        """Samples that one epoch sees, weights included."""
        return len(self._order)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one epoch."""
        return steps_per_epoch(len(self._order), global_batch=self._global_batch)

    def __len__(self) -> int:
        return self._total_steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epoch_held": None}

    def reshaped(self, micro_batch: int) -> TrainSteps:
        """The same steps in micro-batches of another size; samples, order and loss stay what they are."""
        other = copy.copy(self)
        other._shape = replace(self._shape, micro_batch=micro_batch)
        return other

    def __getitem__(self, index: int) -> Step:
        if not 0 <= index < self._total_steps:
            raise IndexError(f"step {index} of {self._total_steps}")
        epoch, step = divmod(index, self.steps_per_epoch)
        positions = self._epoch(epoch)[step * self._global_batch : (step + 1) * self._global_batch]
        return Step(
            index=index,
            epoch=epoch,
            micro_batches=_share(
                self._prepared,
                fitted=self._fitted,
                positions=positions,
                groups=self._shape.groups(self._fitted.lengths[positions].tolist(), processes=self._world_size),
                packing=self._shape.packing,
                world_size=self._world_size,
                rank=self._rank,
            ),
            samples=len(positions),
            tokens=int(self._fitted.lengths[positions].sum(dtype=np.int64)),
            supervised_tokens=int(self._fitted.learned[positions].sum(dtype=np.int64)),
            row_ids=self._fitted.rows[positions],
            rows=len(positions),
        )

    def _epoch(self, epoch: int) -> Int64:
        if self._epoch_held is None or self._epoch_held[0] != epoch:
            self._epoch_held = (epoch, self._order(epoch))
        return self._epoch_held[1]


class EvalBatches:
    """Micro-batches over the validation rows, in order, shared round robin by the ranks.

    Every rank gets the same number of them (idle ones at the end of a set), so that collectives stay in step. `names`
    are those of the sources, one set each; none: all rows are one set.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        fitted: Fitted,
        micro_batch: int,
        packing: bool,
        names: tuple[str, ...] = (),
        world_size: int = 1,
        rank: int = 0,
    ) -> None:
        self.names = names
        self._prepared, self._fitted = prepared, fitted
        self._world_size, self._rank = world_size, rank
        self._shape = BatchShape(micro_batch=micro_batch, packing=packing, max_length=fitted.max_length)
        self._turns = self._taken_in_turns()

    def reshaped(self, micro_batch: int) -> EvalBatches:
        """The same rows in micro-batches of another size."""
        other = copy.copy(self)
        other._shape = replace(self._shape, micro_batch=micro_batch)
        other._turns = other._taken_in_turns()
        return other

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def samples(self) -> int:
        """How many rows are evaluated, over all ranks."""
        return len(self._fitted.rows)

    def set_of(self, turn: int) -> int:
        """The place in `names` of what the ranks evaluate in this turn."""
        return self._turns[turn][0]

    def _taken_in_turns(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """The set of each turn, and `[first, last)` of what each rank takes of it."""
        sources = self._prepared.sources if self.names else self._prepared.sources[-1:]
        turns: list[tuple[int, list[tuple[int, int]]]] = []
        first = 0
        for place, source in enumerate(sources):
            last = int(np.searchsorted(self._fitted.rows, source.stop))
            groups = self._shape.groups(self._fitted.lengths[first:last].tolist())
            moved = [(first + begin, first + end) for begin, end in groups]
            turns += [(place, moved[at : at + self._world_size]) for at in range(0, len(moved), self._world_size)]
            first = last
        return turns

    def __iter__(self) -> Iterator[MicroBatch]:
        for _, groups in self._turns:
            yield from _share(
                self._prepared,
                fitted=self._fitted,
                positions=np.arange(len(self._fitted.rows)),
                groups=groups,
                packing=self._shape.packing,
                world_size=self._world_size,
                rank=self._rank,
            )


def steps_per_epoch(samples: int, *, global_batch: int) -> int:
    """Optimiser steps that see `samples` samples once."""
    return math.ceil(samples / global_batch)


def _share(
    prepared: Prepared,
    *,
    fitted: Fitted,
    positions: Int64,
    groups: Sequence[tuple[int, int]],
    packing: bool,
    world_size: int,
    rank: int,
) -> tuple[MicroBatch, ...]:
    """The groups that fall to `rank` as micro-batches; one idle one where none does."""

    def batch(part: Int64, *, is_idle: bool = False) -> MicroBatch:
        learned = 0 if is_idle else int(fitted.learned[part].sum(dtype=np.int64))
        return MicroBatch(
            prepared=prepared,
            rows=fitted.rows[part],
            starts=fitted.starts[part],
            lengths=fitted.lengths[part],
            supervised_tokens=learned,
            is_packed=packing,
            is_idle=is_idle,
        )

    mine = tuple(batch(positions[first:last]) for first, last in groups[rank::world_size])
    return mine or (batch(positions[:1], is_idle=True),)
