"""Pairs to embed: a sample is a query, the passages that answer it, and hard negatives; a step draws some of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from loradock.catalog.samples import SampleKind
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig
from loradock.data.pairs.groups import Batches, Groups, split
from loradock.data.pairs.preparer import NEGATIVE, POSITIVE, QUERY, PairTask
from loradock.data.pairs.steps import PairDraw, PairTurns
from loradock.data.pairs.template import source
from loradock.data.prepared import Prepared
from loradock.data.samples.base import Part, Preparing, SampleSet
from loradock.data.selection import Selection
from loradock.data.steps import BatchShape, Int64, Ranks, Stream
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import DataError
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PairPart(Part):
    """Prepared pairs; `chosen` are places in `groups`."""

    groups: Groups

    @classmethod
    def of(cls, prepared: Prepared, groups: Groups, chosen: Int64 | None = None) -> Self:
        """These of the groups, or all."""
        return cls(prepared=prepared, groups=groups, chosen=np.arange(len(groups)) if chosen is None else chosen)

    @property
    def used(self) -> str:
        """Their number and places."""
        digest = hashlib.sha256(self.chosen.astype("<i8").tobytes()).hexdigest()
        return f"{len(self.chosen)} pairs, {digest}"

    def mean_tokens(self, role: int) -> float:
        """Of the documents of a role (`pairs.preparer`) in all groups; 0 where there are none."""
        lengths = np.diff(self.prepared.offsets)[np.asarray(self.prepared.roles) == role]
        return float(lengths.mean()) if lengths.size else 0.0

    def drawn_negatives(self, asked: int) -> float:
        """How many negatives a chosen group gives in the mean, where so many are asked for."""
        return float(np.minimum(self.groups.negatives[self.chosen], asked).mean())


@dataclass(frozen=True, kw_only=True)
class PairSamples(SampleSet):
    """Pairs to train on, and perhaps to evaluate on."""

    kind: ClassVar[SampleKind] = "pairs"
    train: PairPart
    validation: PairPart | None

    @classmethod
    def of(cls, config: RunConfig, preparing: Preparing) -> Self:
        """See `SampleSet.of`. DataError also where a step would hold one passage, which nothing is held against."""
        data, embedding = config.data, config.embedding

        def task(data: DataConfig, spec: TokenizerSpec) -> PairTask:
            return PairTask.of(embedding, spec=spec, special=data.special_tokens)

        trained, apart = preparing.with_held_out(data, task)
        groups, selection = Groups.of(trained), Selection.of(trained, deduplicate=data.deduplicate)
        if apart:
            train, validation = PairPart.of(trained, groups, selection.samples), PairPart.of(apart, Groups.of(apart))
        else:
            assert isinstance(data.validation, int | float)
            chosen, judged = split(
                trained, groups, validation=data.validation, seed=data.seed, places=selection.samples
            )
            train = PairPart.of(trained, groups, chosen)
            validation = PairPart.of(trained, groups, judged) if len(judged) else None
        check_batches(train, config=config)
        return cls(config=config, train=train, validation=validation, selection=selection)

    @property
    def parts(self) -> Mapping[str, PairPart]:
        """See `SampleSet`."""
        named = (("pairs", self.train), ("pairs_validation", self.validation))
        return {name: part for name, part in named if part}

    @property
    def batches(self) -> Batches:
        """The batches of each epoch."""
        size, seed, part = self.config.embedding.global_batch, self.config.train.seed, self.train
        return Batches(part.prepared, part.groups, chosen=part.chosen, size=size, seed=seed)

    @property
    def facts(self) -> DataFacts:
        """Documents as an epoch sees them; see `SampleSet`."""
        embedding, batches, part = self.config.embedding, self.batches, self.train
        steps, of_step = len(batches), min(embedding.global_batch, batches.groups_per_epoch)
        drawn = {QUERY: 1.0, POSITIVE: 1.0, NEGATIVE: part.drawn_negatives(embedding.negatives)}
        documents = round(steps * of_step * sum(drawn.values()))
        tokens = round(steps * of_step * sum(count * part.mean_tokens(role) for role, count in drawn.items()))
        return DataFacts(
            train_rows=documents,
            validation_rows=len(self.validation.chosen) if self.validation else 0,
            tokens=tokens,
            supervised_tokens=0,
            limit_tokens=max(embedding.query_length, embedding.passage_length),
            longest_tokens=int(np.diff(part.prepared.offsets).max()),
            samples_per_epoch=documents,
            epoch_tokens=tokens,
            steps_per_epoch=steps,
            pairs=part.chosen.size,
            template=("none", "pairs are written by embedding.template"),
        )

    @property
    def samples_a_step(self) -> int:
        """See `SampleSet`."""
        return self.config.embedding.global_batch

    def stream(self, plan: Plan, *, facts: Facts) -> Stream:
        """See `SampleSet`."""
        return Stream(self.batches, self.draw(self.train, plan, facts=facts))

    def turns(self, plan: Plan, *, facts: Facts) -> PairTurns | None:
        """See `SampleSet`."""
        if self.validation is None:
            return None
        return PairTurns(self.judged(self.validation), self.draw(self.validation, plan, facts=facts))

    def judged(self, part: PairPart) -> Batches:
        """The fixed batches of the validation part; as in training the last one that is not full is left out."""
        size, seed = self.config.embedding.global_batch, self.config.train.seed
        return Batches(part.prepared, part.groups, chosen=part.chosen, size=size, seed=seed, is_permuted=False)

    def draw(self, part: PairPart, plan: Plan, *, facts: Facts) -> PairDraw:
        """How groups of a part become passes under a plan."""
        return PairDraw(
            part.prepared,
            part.groups,
            embedding=self.config.embedding,
            shape=BatchShape(
                micro_batch=plan.micro_batch.value, packing=plan.packing.value, max_length=plan.data.limit_tokens
            ),
            seed=self.config.train.seed,
            ranks=Ranks(world_size=facts.world_size, rank=facts.rank),
        )

    @property
    def notes(self) -> list[str]:
        """How many pairs there are, what is left out, and what is missing."""
        embedding, part, batches = self.config.embedding, self.train, self.batches
        negatives = part.groups.negatives[part.chosen]
        positives = int(part.groups.positives[part.chosen].sum())
        counts = f"{positives:,} positives and {int(negatives.sum()):,} hard negatives"
        notes = [
            *part.prepared.notes,
            *self.selection_notes,
            f"pairs: {len(part.chosen):,} queries with {counts}; {embedding.global_batch} a step",
        ]
        if not batches.full:
            notes.append(f"all {batches.groups_per_epoch:,} queries are one step: embedding.global_batch asks for more")
        notes.append(self.recipe)
        if few := int(np.count_nonzero(negatives < embedding.negatives)):
            wanted = f"embedding.negatives {embedding.negatives}"
            notes.append(f"{few:,} queries have fewer hard negatives than {wanted}, and use those")
        if batches.left_out:
            notes.append(
                f"{batches.left_out:,} queries, others in each epoch, are left out: the last batch would not be full"
            )
        if self.validation and (unused := self.judged(self.validation).left_out):
            notes.append(f"{unused:,} held-out pairs are not evaluated: their batch would not be full")
        return notes

    @property
    def recipe(self) -> str:
        """How texts become vectors, and what the loss is, in a line."""
        embedding, train = self.config.embedding, self.config.train
        pooled = "instruction and text" if embedding.pool_instruction else "the text, its instruction attended to"
        negatives = "every passage of the step" if embedding.in_batch else "its own hard negatives"
        line = (
            f"embedding: template {self.train.prepared.template}, {embedding.attention} attention, "
            f"{embedding.pooling} pooling of {pooled}; a query is compared with {negatives} at temperature "
            f"{embedding.temperature:g}"
        )
        if not self.config.objective_spec.answers:
            return line
        generative = f"{train.generative_weight:g} x {train.generative_loss}"
        return f"{line}; loss: {embedding.weight:g} x contrastive + {generative}"

    def as_dict(self) -> dict[str, Any]:
        """Their number, and what they were written with."""
        return {
            "pairs": len(self.train.chosen),
            "pairs_left_out": self.batches.left_out,
            "duplicate_pairs": self.selection.copies,
            "embedding_template": self.train.prepared.template,
            "embedding_template_sha256": hashlib.sha256(source(self.config.embedding.template).encode()).hexdigest(),
        }


def described(
    config: RunConfig, pairs: int, *, mean_tokens: int, longest_tokens: int, learned_share: float
) -> DataFacts:
    """Counts for the plan of pairs that are only described, and of as many rows beside them as a step wants.

    Each document and row has `mean_tokens`; `learned_share` of a row's is learned.
    """
    embedding, steps = config.embedding, max(1, pairs // config.embedding.global_batch)
    documents = steps * min(pairs, embedding.global_batch) * (2 + embedding.negatives)
    answered = steps * config.train.global_batch if config.objective_spec.answers else 0
    lengths = [embedding.query_length, embedding.passage_length]
    if answered and config.data.max_length != "auto":
        lengths.append(config.data.max_length)
    tokens = (documents + answered) * min(mean_tokens, max(lengths))
    return DataFacts(
        train_rows=documents + answered,
        validation_rows=0,
        tokens=tokens,
        supervised_tokens=round(tokens * learned_share * answered / (documents + answered)),
        limit_tokens=max(lengths),
        longest_tokens=min(longest_tokens, max(lengths)),
        samples_per_epoch=documents + answered,
        epoch_tokens=tokens,
        steps_per_epoch=steps,
        pairs=pairs,
    )


def check_batches(part: PairPart, *, config: RunConfig) -> None:
    """DataError where a step would hold one passage, which nothing is held against."""
    passages = min(len(part.chosen), config.embedding.global_batch)
    negatives = int(np.minimum(part.groups.negatives[part.chosen], config.embedding.negatives).max(initial=0))
    if not len(part.chosen):
        raise DataError("there is no pair to train on", hint="--set data.sources=FILE with at least two pairs")
    if (passages == 1 or not config.embedding.in_batch) and not negatives:
        what = "each query would be compared with its own passage alone: there is nothing to learn"
        raise DataError(what, hint="add hard negatives, or more pairs with --set embedding.in_batch=true")
