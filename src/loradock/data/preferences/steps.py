"""Optimiser steps over preference pairs: a pair is never split between micro-batches.

`relations` of a batch, over all ranks: `trained` int64 [documents] says which of the part's documents they are,
`learned` int64 [documents] how many tokens of each answer are learned, `margins` float32 [pairs] by how much the chosen
ones are better, as the rows say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from loradock.data.collate import IDLE, Batch, MicroBatch
from loradock.data.preferences.pairs import A_PAIR, FittedPairs, documents_of
from loradock.data.prepared import Prepared
from loradock.data.steps import ALONE, BatchShape, Int64, Ranks


class PreferenceDraw:
    """Pairs as they are, packed or padded in their order; a micro-batch counts documents, and has whole pairs."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        fitted: FittedPairs,
        shape: BatchShape,
        shares_prompts: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        self._prepared, self._fitted, self._shape, self._ranks = prepared, fitted, shape, ranks
        self._shares_prompts = shares_prompts

    def reshaped(self, micro_batch: int) -> PreferenceDraw:
        """See `steps.Draw`."""
        shape = replace(self._shape, micro_batch=micro_batch)
        return PreferenceDraw(
            self._prepared,
            fitted=self._fitted,
            shape=shape,
            shares_prompts=self._shares_prompts,
            ranks=self._ranks,
        )

    def __call__(self, samples: Int64, *, epoch: int) -> Batch:
        """The pairs at these positions of the fitted ones."""
        return self.cut(samples, self.groups(samples, processes=self._ranks.world_size))

    def groups(self, samples: Int64, *, processes: int = 1) -> list[tuple[int, int]]:
        """`[first, last)` of the pairs of each micro-batch."""
        shape = self._shape
        if not shape.packing:
            shape = replace(shape, micro_batch=max(1, shape.micro_batch // A_PAIR))
        return shape.groups(self._fitted.lengths[samples].tolist(), processes=processes)

    def cut(self, samples: Int64, groups: Sequence[tuple[int, int]]) -> Batch:
        """The batch of pairs that are already cut into micro-batches."""
        documents, ranks = self._fitted.documents, self._ranks
        places = documents_of(samples)
        mine = tuple(self._micro_batch(places, *group) for group in groups[ranks.rank :: ranks.world_size])
        return Batch(
            micro_batches=mine or (self._micro_batch(places, 0, 1, is_idle=True),),
            samples=len(samples),
            tokens=int(documents.lengths[places].sum(dtype=np.int64)),
            supervised_tokens=int(documents.learned[places].sum(dtype=np.int64)),
            row_ids=self._fitted.pairs[samples],
            documents=len(places),
            relations={
                "trained": places,
                "learned": documents.learned[places].astype(np.int64),
                "margins": self._prepared.margins[documents.rows[places[::A_PAIR]]],
            },
        )

    def _micro_batch(self, places: Int64, first: int, last: int, *, is_idle: bool = False) -> MicroBatch:
        documents, mine = self._fitted.documents, np.arange(A_PAIR * first, A_PAIR * last)
        rows = places[mine]
        return MicroBatch(
            prepared=self._prepared,
            rows=documents.rows[rows],
            places=np.full(len(mine), IDLE) if is_idle else mine,
            starts=documents.starts[rows],
            lengths=documents.lengths[rows],
            supervised_tokens=0 if is_idle else int(documents.learned[rows].sum(dtype=np.int64)),
            is_packed=self._shape.packing,
            is_idle=is_idle,
            purpose="score",
            shares_prompts=self._shares_prompts,
        )


class PreferenceTurns:
    """The held-out pairs in order, a micro-batch a rank in each turn; idle ones at the end of a set.

    `names` are those of the sources, one set each; none: all pairs are one set.
    """

    def __init__(
        self,
        prepared: Prepared,
        draw: PreferenceDraw,
        *,
        fitted: FittedPairs,
        names: tuple[str, ...] = (),
        processes: int = 1,
    ) -> None:
        self.names = names
        self._prepared, self._draw, self._fitted, self._processes = prepared, draw, fitted, processes

    def reshaped(self, micro_batch: int) -> PreferenceTurns:
        """See `steps.Turns`."""
        draw = self._draw.reshaped(micro_batch)
        return PreferenceTurns(self._prepared, draw, fitted=self._fitted, names=self.names, processes=self._processes)

    @property
    def samples(self) -> int:
        """See `steps.Turns`."""
        return len(self._fitted)

    def __iter__(self) -> Iterator[Batch]:
        sources = self._prepared.sources if self.names else self._prepared.sources[-1:]
        stops = np.searchsorted(self._fitted.pairs, [source.stop // A_PAIR for source in sources]).tolist()
        size, first = self._processes, 0
        for place, stop in enumerate(stops):
            samples = np.arange(first, stop)
            groups = self._draw.groups(samples)
            for turn in (groups[at : at + size] for at in range(0, len(groups), size)):
                begin, end = turn[0][0], turn[-1][1]
                moved = [(a - begin, b - begin) for a, b in turn]
                yield replace(self._draw.cut(samples[begin:end], moved), set_index=place)
            first = stop
