"""Optimiser steps: which rows each one sees, in which micro-batches, on which rank. The data cursor is the step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from loradock.catalog.samples import SampleKind
from loradock.data.collate import Batch, MicroBatch

Int64 = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One optimiser step as one rank sees it: a batch of each kind of samples that the objective learns from."""

    index: int
    epoch: int
    batches: Mapping[SampleKind, Batch]

    @property
    def micro_batches(self) -> tuple[MicroBatch, ...]:
        """All of this rank's."""
        return tuple(each for batch in self.batches.values() for each in batch.micro_batches)

    @property
    def embedded(self) -> tuple[MicroBatch, ...]:
        """Those of this rank whose documents become vectors."""
        return tuple(batch for batch in self.micro_batches if batch.purpose == "embed")

    @property
    def labelled(self) -> tuple[MicroBatch, ...]:
        """Those of this rank whose tokens are predicted, by whichever pass: all but documents to embed."""
        return tuple(batch for batch in self.micro_batches if batch.purpose != "embed")

    @property
    def samples(self) -> int:
        """Over all ranks and kinds."""
        return sum(batch.samples for batch in self.batches.values())

    @property
    def tokens(self) -> int:
        """Over all ranks and kinds, without padding."""
        return sum(batch.tokens for batch in self.batches.values())

    @property
    def supervised_tokens(self) -> int:
        """Over all ranks and kinds: what a likelihood is divided by."""
        return sum(batch.supervised_tokens for batch in self.batches.values())


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


class Order(Protocol):
    """Which samples each step of an epoch sees."""

    def __len__(self) -> int:
        """Steps of one epoch, the same in each."""
        ...

    def batch(self, epoch: int, step: int) -> Int64:
        """The samples of a step of an epoch (both from 0), int64, in order."""
        ...


class Draw(Protocol):
    """Samples -> the batch that they are, in this rank's micro-batches."""

    def __call__(self, samples: Int64, *, epoch: int) -> Batch:
        """The batch of these samples; `epoch` seeds what is drawn of each."""
        ...

    def reshaped(self, micro_batch: int) -> Self:
        """The same in micro-batches of another size; samples, order and loss stay what they are."""
        ...


@dataclass(frozen=True)
class Stream:
    """One kind of samples, step after step: epochs follow one another."""

    order: Order
    draw: Draw

    def batch(self, index: int) -> Batch:
        """Of the step with this number since the run began."""
        epoch, step = divmod(index, len(self.order))
        return self.draw(self.order.batch(epoch, step), epoch=epoch)


class Steps:
    """All optimiser steps of a run, by number and in constant time, so that a run resumes at any of them.

    An epoch is one of the first kind's; the others have epochs of their own. The samples of a step depend neither on
    packing nor on micro-batches nor on the number of ranks.
    """

    def __init__(self, streams: Mapping[SampleKind, Stream], *, total_steps: int) -> None:
        self._streams, self._total_steps = streams, total_steps
        self.steps_per_epoch = len(next(iter(streams.values())).order)

    def __len__(self) -> int:
        return self._total_steps

    def reshaped(self, micro_batch: int) -> Steps:
        """The same steps in micro-batches of another size."""
        streams: dict[SampleKind, Stream] = {
            kind: replace(stream, draw=stream.draw.reshaped(micro_batch)) for kind, stream in self._streams.items()
        }
        return Steps(streams, total_steps=self._total_steps)

    def __getitem__(self, index: int) -> Step:
        if not 0 <= index < self._total_steps:
            raise IndexError(f"step {index} of {self._total_steps}")
        batches: dict[SampleKind, Batch] = {kind: stream.batch(index) for kind, stream in self._streams.items()}
        return Step(index=index, epoch=index // self.steps_per_epoch, batches=batches)


class Turns(Protocol):
    """The held-out samples of one kind in fixed batches, the same each time; all ranks take as many turns.

    `names` are those of the sets that they come from, none: all are one set; `samples` counts over all ranks.
    """

    names: tuple[str, ...]

    @property
    def samples(self) -> int:
        """How many are evaluated, over all ranks."""
        ...

    def __iter__(self) -> Iterator[Batch]: ...

    def reshaped(self, micro_batch: int) -> Self:
        """The same in micro-batches of another size."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What is held out, by kind; a kind that holds nothing out is missing."""

    turns: Mapping[SampleKind, Turns]

    def reshaped(self, micro_batch: int) -> Evaluation:
        """The same in micro-batches of another size."""
        return Evaluation({kind: turns.reshaped(micro_batch) for kind, turns in self.turns.items()})


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How many processes share a step, and which one this is."""

    world_size: int = 1
    rank: int = 0


ALONE = Ranks()
