"""Optimiser steps over pairs: which queries and passages each one holds against one another, on which rank."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data.collate import MicroBatch, PairBatch
from loradock.data.pairs.groups import Batches, Groups, Int64
from loradock.data.prepared import Prepared
from loradock.data.steps import BatchShape, Step, TrainSteps

EVALUATED = 1 << 40
"""In the place of an epoch, where positives and negatives for an evaluation are drawn: the same each time."""


@dataclass(frozen=True, kw_only=True)
class PairShape:
    """How pairs become passes: what the configuration asks of their loss, the shape of a pass, and the ranks."""

    asked: EmbeddingConfig
    shape: BatchShape
    world_size: int = 1
    rank: int = 0


class PairBatches:
    """Batches of groups as the ranks see them."""

    def __init__(self, prepared: Prepared, groups: Groups, *, shape: PairShape) -> None:
        self._prepared, self._groups, self.shape = prepared, groups, shape

    def __call__(self, batch: Int64, *, seed: tuple[int, int]) -> PairBatch:
        """One batch of groups; `seed` (of the run, and the epoch) draws positives and negatives."""
        asked, groups = self.shape.asked, self._groups
        drawn = [groups.drawn(int(group), negatives=asked.negatives, seed=seed) for group in batch]
        sizes = np.array([len(each) for each in drawn])
        documents = np.array([row for each in drawn for row in each], dtype=np.int64)
        queries = np.cumsum(sizes) - sizes
        is_passage = np.ones(len(documents), dtype=np.bool_)
        is_passage[queries] = False
        positives = queries - np.arange(len(batch))  # among the passages each query before is missing
        lengths = self._prepared.offsets[documents + 1] - self._prepared.offsets[documents]
        micro_batches, places = self._shared(documents, lengths)
        return PairBatch(
            micro_batches=micro_batches,
            places=places,
            documents=len(documents),
            queries=queries,
            passages=np.flatnonzero(is_passage),
            positives=positives,
            hidden=self._hidden(batch, documents[is_passage], positives, np.repeat(np.arange(len(batch)), sizes - 1)),
            tokens=int(lengths.sum()),
            row_ids=batch,
        )

    def _hidden(self, batch: Int64, passages: Int64, positives: Int64, owners: Int64) -> Any:
        """Bool [Q, P]: others' passages where only own ones count, and copies of what answers the query."""
        asked = self.shape.asked
        is_own = np.arange(len(batch))[:, None] == owners
        hidden = np.zeros_like(is_own) if asked.in_batch else ~is_own
        if asked.duplicates == "mask":
            known: dict[bytes, list[int]] = {}
            for column, row in enumerate(passages):
                known.setdefault(self._prepared.row(int(row))[0].tobytes(), []).append(column)
            for query, group in enumerate(batch):
                for row in self._groups.answers(int(group)):
                    hidden[query, known.get(self._prepared.row(row)[0].tobytes(), [])] = True
        hidden[np.arange(len(batch)), positives] = False
        return hidden

    def _shared(self, documents: Int64, lengths: Int64) -> tuple[tuple[MicroBatch, ...], tuple[Int64, ...]]:
        """This rank's micro-batches and the places of their documents: the longest first where rows are padded."""
        shape = self.shape.shape
        order = np.arange(len(documents)) if shape.packing else np.argsort(-lengths, kind="stable")
        groups = shape.groups(lengths[order].tolist(), processes=self.shape.world_size)
        places = tuple(order[first:last] for first, last in groups[self.shape.rank :: self.shape.world_size])
        made = (
            MicroBatch(
                prepared=self._prepared,
                rows=documents[own],
                starts=np.zeros(len(own), dtype=np.int32),
                lengths=lengths[own].astype(np.int32),
                supervised_tokens=0,
                is_packed=shape.packing,
                is_pooled=True,
                pools_all=self.shape.asked.pool_instruction,
            )
            for own in places
        )
        return tuple(made), places

    def reshaped(self, micro_batch: int) -> PairBatches:
        """The same in micro-batches of another size."""
        shape = replace(self.shape, shape=replace(self.shape.shape, micro_batch=micro_batch))
        return PairBatches(self._prepared, self._groups, shape=shape)


class PairSteps:
    """All optimiser steps of a run over pairs, each by its number, with the generative rows beside them where given.

    An epoch is one of the pairs; the generative rows have epochs of their own, one after another.
    """

    def __init__(
        self, batches: Batches, made: PairBatches, *, seed: int, total_steps: int, rows: TrainSteps | None = None
    ) -> None:
        self._batches, self._made, self._rows = batches, made, rows
        self._seed, self._total_steps = seed, total_steps

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one epoch."""
        return len(self._batches)

    def __len__(self) -> int:
        return self._total_steps

    def reshaped(self, micro_batch: int) -> PairSteps:
        """The same steps in micro-batches of another size."""
        other = copy.copy(self)
        other._made = self._made.reshaped(micro_batch)
        other._rows = self._rows and self._rows.reshaped(micro_batch)
        return other

    def __getitem__(self, index: int) -> Step:
        if not 0 <= index < self._total_steps:
            raise IndexError(f"step {index} of {self._total_steps}")
        epoch, step = divmod(index, self.steps_per_epoch)
        pairs = self._made(self._batches(epoch)[step], seed=(self._seed, epoch))
        rows = self._rows[index] if self._rows is not None else None
        return Step(
            index=index,
            epoch=epoch,
            micro_batches=rows.micro_batches if rows else (),
            samples=len(pairs.queries) + (rows.samples if rows else 0),
            tokens=pairs.tokens + (rows.tokens if rows else 0),
            supervised_tokens=rows.supervised_tokens if rows else 0,
            row_ids=rows.row_ids if rows else pairs.row_ids,
            rows=rows.rows if rows else 0,
            pairs=pairs,
        )


class PairEvaluation:
    """The held-out pairs in fixed batches, and the held-out generative rows; either may be missing."""

    def __init__(self, batches: Batches | None, made: PairBatches | None, *, seed: int, rows: Any | None) -> None:
        self._batches, self._made, self._seed = batches, made, seed
        self.rows = rows

    def pairs(self) -> list[PairBatch]:
        """The batches, the same each time."""
        if self._batches is None or self._made is None:
            return []
        return [self._made(batch, seed=(self._seed, EVALUATED)) for batch in self._batches(0)]

    @property
    def row_count(self) -> int:
        """Generative rows that are held out."""
        return self.rows.samples if self.rows is not None else 0

    @property
    def has_pairs(self) -> bool:
        """Whether pairs are held out."""
        return self._batches is not None

    def reshaped(self, micro_batch: int) -> PairEvaluation:
        """The same in micro-batches of another size."""
        made = self._made and self._made.reshaped(micro_batch)
        rows = self.rows and self.rows.reshaped(micro_batch)
        return PairEvaluation(self._batches, made, seed=self._seed, rows=rows)
