"""Optimiser steps over rows, each a sample of its own: their order, micro-batches, and turns of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loradock.data.collate import Batch, MicroBatch
from loradock.data.prepared import Prepared
from loradock.data.select import EpochOrder, Fitted
from loradock.data.steps import ALONE, BatchShape, Int64, Ranks, Steps, Stream
from loradock.errors import DataError


class RowOrder:
    """Rows in the order of `EpochOrder`, `global_batch` a step; the last of an epoch may be smaller."""

    def __init__(self, order: EpochOrder, *, global_batch: int) -> None:
        if not len(order):
            raise DataError("there is no row to train on", hint="--set data.sources=FILE with at least one row")
        self._order, self._global_batch = order, global_batch
        self._of_epoch: tuple[int, Int64] | None = None

    def __len__(self) -> int:
        return steps_per_epoch(len(self._order), global_batch=self._global_batch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_epoch": None}

    def batch(self, epoch: int, step: int) -> Int64:
        """Positions in the fitted rows."""
        if self._of_epoch is None or self._of_epoch[0] != epoch:
            self._of_epoch = (epoch, self._order(epoch))
        return self._of_epoch[1][step * self._global_batch : (step + 1) * self._global_batch]


class RowDraw:
    """Rows as they are, packed or padded in their order."""

    def __init__(self, prepared: Prepared, *, fitted: Fitted, shape: BatchShape, ranks: Ranks = ALONE) -> None:
        self._prepared, self._fitted, self._shape, self._ranks = prepared, fitted, shape, ranks

    def reshaped(self, micro_batch: int) -> RowDraw:
        """See `Draw`."""
        shape = replace(self._shape, micro_batch=micro_batch)
        return RowDraw(self._prepared, fitted=self._fitted, shape=shape, ranks=self._ranks)

    def __call__(self, samples: Int64, *, epoch: int) -> Batch:
        """The rows at these positions of the fitted ones."""
        lengths = self._fitted.lengths[samples]
        groups = self._shape.groups(lengths.tolist(), processes=self._ranks.world_size)
        return self.taken(samples, groups)

    def taken(self, samples: Int64, groups: Sequence[tuple[int, int]]) -> Batch:
        """The batch of rows that are already cut into micro-batches: `[first, last)` of each."""
        fitted, ranks = self._fitted, self._ranks
        mine = tuple(self._micro_batch(samples, *group) for group in groups[ranks.rank :: ranks.world_size])
        return Batch(
            micro_batches=mine or (self._micro_batch(samples, 0, 1, is_idle=True),),
            samples=len(samples),
            tokens=int(fitted.lengths[samples].sum(dtype=np.int64)),
            supervised_tokens=int(fitted.learned[samples].sum(dtype=np.int64)),
            row_ids=fitted.rows[samples],
        )

    def _micro_batch(self, all_samples: Int64, first: int, last: int, *, is_idle: bool = False) -> MicroBatch:
        fitted, samples = self._fitted, all_samples[first:last]
        return MicroBatch(
            prepared=self._prepared,
            rows=fitted.rows[samples],
            places=np.arange(first, last),
            starts=fitted.starts[samples],
            lengths=fitted.lengths[samples],
            supervised_tokens=0 if is_idle else int(fitted.learned[samples].sum(dtype=np.int64)),
            is_packed=self._shape.packing,
            is_idle=is_idle,
            contexts=fitted.contexts[samples],
        )


class RowTurns:
    """The held-out rows in order, a micro-batch a rank in each turn; idle ones at the end of a set.

    `names` are those of the sources, one set each; none: all rows are one set.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        fitted: Fitted,
        shape: BatchShape,
        names: tuple[str, ...] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        self.names = names
        self._prepared, self._fitted, self._shape, self._ranks = prepared, fitted, shape, ranks
        self._turns = self._taken_in_turns()

    def reshaped(self, micro_batch: int) -> RowTurns:
        """See `Turns`."""
        shape = replace(self._shape, micro_batch=micro_batch)
        return RowTurns(self._prepared, fitted=self._fitted, shape=shape, names=self.names, ranks=self._ranks)

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def samples(self) -> int:
        """See `Turns`."""
        return len(self._fitted.rows)

    def _taken_in_turns(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """The set of each turn, and `[first, last)` of what each rank takes of it."""
        sources = self._prepared.sources if self.names else self._prepared.sources[-1:]
        size = self._ranks.world_size
        turns: list[tuple[int, list[tuple[int, int]]]] = []
        first = 0
        for place, source in enumerate(sources):
            last = int(np.searchsorted(self._fitted.rows, source.stop))
            groups = self._shape.groups(self._fitted.lengths[first:last].tolist())
            moved = [(first + begin, first + end) for begin, end in groups]
            turns += [(place, moved[at : at + size]) for at in range(0, len(moved), size)]
            first = last
        return turns

    def __iter__(self) -> Iterator[Batch]:
        draw = RowDraw(self._prepared, fitted=self._fitted, shape=self._shape, ranks=self._ranks)
        for place, groups in self._turns:
            first = groups[0][0]
            samples = np.arange(first, groups[-1][1])
            batch = draw.taken(samples, [(begin - first, end - first) for begin, end in groups])
            yield replace(batch, set_index=place)


def row_steps(
    prepared: Prepared,
    *,
    fitted: Fitted,
    global_batch: int,
    shape: BatchShape,
    seed: int,
    total_steps: int,
    ranks: Ranks = ALONE,
) -> Steps:
    """The steps of rows alone."""
    order = RowOrder(EpochOrder(prepared, fitted=fitted, seed=seed), global_batch=global_batch)
    return Steps(
        {"rows": Stream(order, RowDraw(prepared, fitted=fitted, shape=shape, ranks=ranks))}, total_steps=total_steps
    )


def steps_per_epoch(samples: int, *, global_batch: int) -> int:
    """Optimiser steps that see `samples` samples once."""
    return math.ceil(samples / global_batch)
