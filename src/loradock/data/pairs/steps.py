"""Optimiser steps over pairs: which queries and passages each one holds against one another, on which rank.

`relations` of a batch: `queries` [Q] and `passages` [P] int64 are places among its documents; `positives` [Q] int64 is
each query's own passage among the P; `hidden` bool [Q, P] are passages that a query is not held against.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data.collate import Array, Batch, MicroBatch
from loradock.data.pairs.groups import Batches, Groups, Int64
from loradock.data.prepared import Prepared
from loradock.data.steps import ALONE, BatchShape, Ranks

EVALUATED = 1 << 40
"""In the place of an epoch, where positives and negatives for an evaluation are drawn: the same each time."""


class PairDraw:
    """Groups -> the batch of their documents; `seed` is the run's: with the epoch it draws positives and negatives."""

    def __init__(
        self,
        prepared: Prepared,
        groups: Groups,
        *,
        embedding: EmbeddingConfig,
        shape: BatchShape,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self._prepared, self._groups, self._embedding = prepared, groups, embedding
        self._shape, self._seed, self._ranks = shape, seed, ranks

    def reshaped(self, micro_batch: int) -> PairDraw:
        """See `steps.Draw`."""
        return PairDraw(
            self._prepared,
            self._groups,
            embedding=self._embedding,
            shape=replace(self._shape, micro_batch=micro_batch),
            seed=self._seed,
            ranks=self._ranks,
        )

    def __call__(self, samples: Int64, *, epoch: int) -> Batch:
        """The batch of these groups."""
        embedding, groups = self._embedding, self._groups
        seed = (self._seed, epoch)
        drawn = [groups.drawn(int(group), negatives=embedding.negatives, seed=seed) for group in samples]
        sizes = np.array([len(group) for group in drawn])
        documents = np.array([row for group in drawn for row in group], dtype=np.int64)
        queries = np.cumsum(sizes) - sizes
        is_passage = np.ones(len(documents), dtype=np.bool_)
        is_passage[queries] = False
        positives = queries - np.arange(len(samples))  # among the passages each query before is missing
        owners = np.repeat(np.arange(len(samples)), sizes - 1)
        lengths = self._prepared.offsets[documents + 1] - self._prepared.offsets[documents]
        return Batch(
            micro_batches=self._micro_batches(documents, lengths),
            samples=len(samples),
            tokens=int(lengths.sum()),
            supervised_tokens=0,
            row_ids=samples,
            documents=len(documents),
            relations={
                "queries": queries,
                "passages": np.flatnonzero(is_passage),
                "positives": positives,
                "hidden": self._hidden(samples, documents[is_passage], positives, owners),
            },
        )

    def _hidden(self, samples: Int64, passages: Int64, positives: Int64, owners: Int64) -> Array:
        """Bool [Q, P]: others' passages where only own ones count, and copies of what answers the query."""
        is_own = np.arange(len(samples))[:, None] == owners
        hidden = np.zeros_like(is_own) if self._embedding.in_batch else ~is_own
        if self._embedding.duplicates == "mask":
            columns: dict[bytes, list[int]] = {}
            for column, row in enumerate(passages):
                columns.setdefault(self._prepared.row(int(row))[0].tobytes(), []).append(column)
            for query, group in enumerate(samples):
                for row in self._groups.answers(int(group)):
                    hidden[query, columns.get(self._prepared.row(row)[0].tobytes(), [])] = True
        hidden[np.arange(len(samples)), positives] = False
        return hidden

    def _micro_batches(self, documents: Int64, lengths: Int64) -> tuple[MicroBatch, ...]:
        """This rank's: the longest documents first where they are padded."""
        shape, ranks = self._shape, self._ranks
        order = np.arange(len(documents)) if shape.packing else np.argsort(-lengths, kind="stable")
        groups = shape.groups(lengths[order].tolist(), processes=ranks.world_size)
        places = (order[first:last] for first, last in groups[ranks.rank :: ranks.world_size])
        return tuple(
            MicroBatch(
                prepared=self._prepared,
                rows=documents[mine],
                places=mine,
                starts=np.zeros(len(mine), dtype=np.int32),
                lengths=lengths[mine].astype(np.int32),
                supervised_tokens=0,
                is_packed=shape.packing,
                purpose="embed",
            )
            for mine in places
        )


class PairTurns:
    """The held-out pairs in fixed batches."""

    names: tuple[str, ...] = ()

    def __init__(self, batches: Batches, draw: PairDraw) -> None:
        self._batches, self._draw = batches, draw

    @property
    def samples(self) -> int:
        """See `steps.Turns`."""
        return sum(len(batch) for batch in self._batches(0))

    def __iter__(self) -> Iterator[Batch]:
        return (self._draw(batch, epoch=EVALUATED) for batch in self._batches(0))

    def reshaped(self, micro_batch: int) -> PairTurns:
        """See `steps.Turns`."""
        return PairTurns(self._batches, self._draw.reshaped(micro_batch))
