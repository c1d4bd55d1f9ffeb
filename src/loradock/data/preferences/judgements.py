"""Labelled answers -> documents, steps over them, and the mismatched answers that a step's divergence is measured on.

Source: KTO (Ethayarajh et al. 2024, section 4.2): the KL divergence from the reference is estimated on prompts of a
step, each with an answer of the same step that was given to another prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from loradock.data.cache import FIRST, UNDESIRABLE
from loradock.data.collate import IDLE, Array, Batch, MicroBatch
from loradock.data.formats.base import Judgement, PreferencePair, Sample
from loradock.data.pool import Preparer
from loradock.data.preferences.preparer import REJECTED, Answer, PreferencePreparer, PreferenceTask
from loradock.data.prepared import Prepared
from loradock.data.row_steps import RowDraw, RowTurns
from loradock.data.row_task import ChunkPreparer
from loradock.data.select import Fitted
from loradock.data.steps import ALONE, BatchShape, Int64, Ranks

Booleans = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class JudgementTask(PreferenceTask):
    """How labelled answers become documents, one each; of preference pairs two, the rejected one as undesirable."""

    @property
    def identity(self) -> dict[str, Any]:
        """See `pool.Work`."""
        return {"judgements": super().identity}

    def preparer(self) -> Preparer:
        """See `pool.Work`."""
        return JudgementPreparer(ChunkPreparer(self))


class JudgementPreparer(PreferencePreparer):
    """The same of labelled answers, and of pairs."""

    @staticmethod
    def answers(sample: Sample) -> tuple[Answer, ...]:
        """See `PreferencePreparer`."""
        if isinstance(sample, PreferencePair):
            return PreferencePreparer.answers(sample)
        assert isinstance(sample, Judgement)
        return (Answer("", FIRST if sample.is_desirable else UNDESIRABLE, sample.answer),)


def desirable(prepared: Prepared, rows: Int64) -> Booleans:
    """Bool [rows]: which of the documents are desirable answers, alone or as the chosen one of a pair."""
    return prepared.roles[rows] == FIRST


def pairs_among(prepared: Prepared, fitted: Fitted) -> Int64:
    """Places of the chosen and the rejected answer of each pair of which both are there, int64 [pairs, 2]."""
    rejected = np.flatnonzero(prepared.roles[fitted.rows] == REJECTED)
    rejected = rejected[fitted.rows[rejected - 1] == fitted.rows[rejected] - 1]
    return np.stack([rejected - 1, rejected], axis=1)


def prompts_of(prepared: Prepared, samples: Int64) -> Int64:
    """A number of each sample's prompt, int64 [samples]: equal for answers to the same one."""
    numbers: dict[bytes, int] = {}
    found: list[int] = []
    for row in prepared.firsts[samples].tolist():
        ids, mask = prepared.row(row)
        prompt = hashlib.sha256(ids[: int(mask.argmax())].tobytes()).digest()
        found.append(numbers.setdefault(prompt, len(numbers)))
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class MismatchedBatch(MicroBatch):
    """Prompts of `rows` (each its first `prompts` tokens) with the answers of other rows behind them.

    `answers` (int64) are those rows, of which what stands behind their own `skipped` tokens is taken, up to `lengths`.
    """

    answers: Array
    prompts: Array
    skipped: Array

    def samples(self) -> Iterator[tuple[Array, Array]]:
        """See `MicroBatch`."""
        columns = (self.rows, self.answers, self.prompts, self.skipped, self.lengths)
        for row, other, prompt, skipped, length in zip(*(column.tolist() for column in columns), strict=True):
            ids, _ = self.prepared.row(row, length=prompt)
            answer_ids, answer_mask = self.prepared.row(other, length=skipped + length - prompt)
            mask = np.concatenate([np.zeros(prompt, dtype=np.bool_), answer_mask[skipped:]])
            yield np.concatenate([ids, answer_ids[skipped:]]), mask


@dataclass(frozen=True, kw_only=True)
class Mismatched:
    """Each prompt of some samples with the answer of another: arrays [samples].

    `partners` int64: whose answer, as a place among the samples. `prompts` int64: tokens of each sample's own prompt;
    `lengths` int64: those of its prompt with the other's answer, at most the longest allowed.
    """

    partners: Int64
    prompts: Int64
    lengths: Int64

    @classmethod
    def of(cls, prepared: Prepared, fitted: Fitted, samples: Int64) -> Self:
        """Of fitted answers at these positions; a prompt that is the other's too is passed over, where there is one."""
        own: list[bytes] = []
        prompts = np.zeros(len(samples), dtype=np.int64)
        lengths = fitted.lengths[samples].astype(np.int64)
        for place, (row, length) in enumerate(zip(fitted.rows[samples].tolist(), lengths.tolist(), strict=True)):
            ids, mask = prepared.row(row, length=length)
            prompts[place] = int(mask.argmax())
            own.append(ids[: prompts[place]].tobytes())
        partners = np.array([_partner(own, place) for place in range(len(own))], dtype=np.int64)
        answers = lengths[partners] - prompts[partners]
        return cls(partners=partners, prompts=prompts, lengths=np.minimum(prompts + answers, fitted.max_length))


def _partner(prompts: Sequence[bytes], place: int) -> int:
    """The nearest one before (the last is before the first) that has another prompt; the one before where none has."""
    before = (step % len(prompts) for step in range(place - 1, place - len(prompts), -1))
    return next(
        (other for other in before if prompts[other] != prompts[place]), place - 1 if place else len(prompts) - 1
    )


class JudgementDraw:
    """Labelled answers of a step, and before them mismatched ones, unless the step has one answer alone.

    Both are packed or padded in their order.
    The places of the answers in a batch are from 0, those of the mismatched ones behind them in the same order.
    `relations` of a batch: `trained` int64 [samples], which of the part's answers they are, `desirable` bool [samples],
    and `learned` int64 [samples], tokens of each answer.
    """

    def __init__(self, prepared: Prepared, *, fitted: Fitted, shape: BatchShape, ranks: Ranks = ALONE) -> None:
        self._prepared, self._fitted, self._shape, self._ranks = prepared, fitted, shape, ranks
        self._rows = RowDraw(prepared, fitted=fitted, shape=shape, ranks=ranks)

    def reshaped(self, micro_batch: int) -> JudgementDraw:
        """See `steps.Draw`."""
        shape = replace(self._shape, micro_batch=micro_batch)
        return JudgementDraw(self._prepared, fitted=self._fitted, shape=shape, ranks=self._ranks)

    def __call__(self, samples: Int64, *, epoch: int) -> Batch:
        """The answers at these positions of the fitted ones."""
        batch = self.answers(self._rows(samples, epoch=epoch), samples)
        if len(samples) == 1:
            return batch
        of_step = Mismatched.of(self._prepared, self._fitted, samples)
        groups = self._shape.groups(of_step.lengths.tolist(), processes=self._ranks.world_size)
        mine = groups[self._ranks.rank :: self._ranks.world_size]
        return replace(
            batch,
            micro_batches=(*(self.mismatched(of_step, samples, *group) for group in mine), *batch.micro_batches),
            tokens=batch.tokens + int(of_step.lengths.sum()),
        )

    def answers(self, batch: Batch, samples: Int64) -> Batch:
        """A batch of rows as answers to score."""
        fitted = self._fitted
        scored = (
            replace(each, purpose="score", places=np.full_like(each.places, IDLE) if each.is_idle else each.places)
            for each in batch.micro_batches
        )
        relations = {
            "trained": samples,
            "desirable": desirable(self._prepared, fitted.rows[samples]),
            "learned": fitted.learned[samples].astype(np.int64),
        }
        return replace(batch, micro_batches=tuple(scored), documents=len(samples), relations=relations)

    def mismatched(self, of_step: Mismatched, samples: Int64, first: int, last: int) -> MicroBatch:
        """The prompts `[first, last)` of a step with the answers of others; no label of theirs is learned from."""
        rows, partners = self._fitted.rows[samples], of_step.partners[first:last]
        lengths, prompts = of_step.lengths[first:last], of_step.prompts[first:last]
        return MismatchedBatch(
            prepared=self._prepared,
            rows=rows[first:last],
            places=np.arange(len(samples) + first, len(samples) + last),
            starts=np.zeros(last - first, dtype=np.int32),
            lengths=lengths.astype(np.int32),
            supervised_tokens=int((lengths - prompts).sum()),
            is_packed=self._shape.packing,
            purpose="score",
            answers=rows[partners],
            prompts=prompts,
            skipped=of_step.prompts[partners],
        )


class JudgementTurns:
    """All held-out prompts with mismatched answers first, then the answers in the turns of `RowTurns`."""

    def __init__(
        self, prepared: Prepared, *, fitted: Fitted, shape: BatchShape, names: tuple[str, ...], ranks: Ranks = ALONE
    ) -> None:
        self.names = names
        self._prepared, self._fitted, self._shape, self._ranks = prepared, fitted, shape, ranks

    def reshaped(self, micro_batch: int) -> JudgementTurns:
        """See `steps.Turns`."""
        shape = replace(self._shape, micro_batch=micro_batch)
        return JudgementTurns(self._prepared, fitted=self._fitted, shape=shape, names=self.names, ranks=self._ranks)

    @property
    def samples(self) -> int:
        """See `steps.Turns`."""
        return len(self._fitted.rows)

    def __iter__(self) -> Iterator[Batch]:
        about: dict[str, Any] = {"fitted": self._fitted, "shape": self._shape, "ranks": self._ranks}
        draw = JudgementDraw(self._prepared, **about)
        samples = np.arange(len(self._fitted.rows))
        held_out = Mismatched.of(self._prepared, self._fitted, samples)
        groups = self._shape.groups(held_out.lengths.tolist()) if len(samples) > 1 else []
        size, rank = self._ranks.world_size, self._ranks.rank
        for turn in (groups[at : at + size] for at in range(0, len(groups), size)):
            is_idle = rank >= len(turn)
            batch = draw.mismatched(held_out, samples, *turn[0 if is_idle else rank])
            if is_idle:  # all ranks take as many turns
                batch = replace(batch, is_idle=True, places=np.full_like(batch.places, IDLE), supervised_tokens=0)
            counts: dict[str, int] = {
                "samples": 0,
                "tokens": batch.tokens,
                "supervised_tokens": 0,
                "documents": len(batch.rows),
            }
            yield Batch(micro_batches=(batch,), row_ids=batch.rows, relations={}, **counts)
        first = 0
        for turn in RowTurns(self._prepared, names=self.names, **about):
            yield draw.answers(turn, samples[first : first + turn.samples])
            first += turn.samples
