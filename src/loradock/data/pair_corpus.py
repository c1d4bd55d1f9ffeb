"""The corpus of a run that embeds: its pairs, and under objective gritlm the rows that it learns to answer from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loradock.config.schema import RunConfig
from loradock.data.corpus import Corpus, Part
from loradock.data.pairs.groups import Batches, Groups, Int64
from loradock.data.pairs.preparer import NEGATIVE, POSITIVE, QUERY
from loradock.data.pairs.steps import PairBatches, PairEvaluation, PairShape, PairSteps
from loradock.data.prepared import Prepared
from loradock.data.steps import BatchShape, TrainSteps
from loradock.data.templates import ChatTemplate
from loradock.errors import DataError
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class PairPart:
    """Prepared pairs, and those `chosen` of their groups (int64)."""

    prepared: Prepared
    groups: Groups
    chosen: Int64

    @property
    def used(self) -> str:
        """What a fingerprint holds of them."""
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
class PairCorpus:
    """Pairs to train on, and perhaps to evaluate on; `rows` are the generative ones beside them."""

    config: RunConfig
    train: PairPart
    validation: PairPart | None
    rows: Corpus | None

    @property
    def parts(self) -> dict[str, PairPart | Part]:
        """All that is used, by name."""
        found: dict[str, PairPart | Part] = {"pairs": self.train}
        if self.validation:
            found["pairs_validation"] = self.validation
        return found | (self.rows.parts if self.rows else {})

    @property
    def batches(self) -> Batches:
        """The batches of each epoch."""
        asked, seed = self.config.embedding, self.config.train.seed
        part = self.train
        return Batches(part.prepared, part.groups, chosen=part.chosen, size=asked.global_batch, seed=seed)

    @property
    def facts(self) -> DataFacts:
        """Counts for the plan: documents and generative rows as an epoch of the pairs sees them."""
        asked, batches, part = self.config.embedding, self.batches, self.train
        steps, of_step = len(batches), min(asked.global_batch, batches.groups_per_epoch)
        drawn = {QUERY: 1.0, POSITIVE: 1.0, NEGATIVE: part.drawn_negatives(asked.negatives)}
        documents = round(steps * of_step * sum(drawn.values()))
        tokens = round(steps * of_step * sum(count * part.mean_tokens(role) for role, count in drawn.items()))
        longest = int(np.diff(part.prepared.offsets).max())
        limit = max(asked.query_length, asked.passage_length)
        rows = self.rows.facts if self.rows else None
        answered = min(self.config.train.global_batch, rows.samples_per_epoch) * steps if rows else 0
        learned = answered * rows.supervised_tokens / max(1, rows.train_rows) if rows else 0.0
        return DataFacts(
            train_rows=documents + answered,
            validation_rows=(len(self.validation.chosen) if self.validation else 0)
            + (rows.validation_rows if rows else 0),
            tokens=tokens + (round(answered * rows.mean_tokens) if rows else 0),
            supervised_tokens=round(learned),
            limit_tokens=max(limit, rows.limit_tokens) if rows else limit,
            longest_tokens=max(longest, rows.longest_tokens) if rows else longest,
            samples_per_epoch=documents + answered,
            epoch_tokens=tokens + (round(answered * rows.mean_tokens) if rows else 0),
            steps_per_epoch=steps,
            truncated_rows=rows.truncated_rows if rows else 0,
            split_rows=rows.split_rows if rows else 0,
            dropped_rows=rows.dropped_rows if rows else 0,
            lost_tokens=rows.lost_tokens if rows else 0,
            pairs=part.chosen.size,
            template=self.rows.rendered_with if self.rows else ("none", "pairs are written by embedding.template"),
        )

    def at_length(self, max_length: int) -> PairCorpus:
        """The generative rows at another longest length; texts to embed have lengths of their own."""
        return replace(self, rows=self.rows and self.rows.at_length(max_length))

    def steps(self, plan: Plan, *, facts: Facts) -> PairSteps:
        """The optimiser steps of the plan, as this process sees them."""
        part = self.train
        rows = self.rows.steps(plan, facts=facts) if self.rows else None
        assert rows is None or isinstance(rows, TrainSteps)
        return PairSteps(
            self.batches,
            PairBatches(part.prepared, part.groups, shape=self.shape(plan, facts=facts)),
            seed=self.config.train.seed,
            total_steps=plan.steps.value,
            rows=rows,
        )

    def evaluation(self, plan: Plan, *, facts: Facts) -> PairEvaluation | None:
        """The validation parts as this process evaluates them; None where there are none."""
        part, seed = self.validation, self.config.train.seed
        rows = self.rows.evaluation(plan, facts=facts) if self.rows else None
        if part is None:
            return PairEvaluation(None, None, seed=seed, rows=rows) if rows else None
        made = PairBatches(part.prepared, part.groups, shape=self.shape(plan, facts=facts))
        return PairEvaluation(self.judged(part), made, seed=seed, rows=rows)

    def judged(self, part: PairPart) -> Batches:
        """The fixed batches of the validation part; as in training the last one that is not full is left out."""
        size, seed = self.config.embedding.global_batch, self.config.train.seed
        return Batches(part.prepared, part.groups, chosen=part.chosen, size=size, seed=seed, is_permuted=False)

    def shape(self, plan: Plan, *, facts: Facts) -> PairShape:
        """How pairs become passes under a plan."""
        shape = BatchShape(
            micro_batch=plan.micro_batch.value, packing=plan.packing.value, max_length=plan.data.limit_tokens
        )
        return PairShape(asked=self.config.embedding, shape=shape, world_size=facts.world_size, rank=facts.rank)

    @property
    def chat_template(self) -> str | None:
        """See `Corpus.chat_template`; None without generative rows."""
        return self.rows.chat_template if self.rows else None

    @property
    def template(self) -> ChatTemplate:
        """What conversations were rendered with; nothing without generative rows."""
        return self.rows.template if self.rows else ChatTemplate("none", "")

    @property
    def notes(self) -> list[str]:
        """What a user is told of the pairs: how many, what is left out, and what is missing; and of the rows."""
        asked, part, batches = self.config.embedding, self.train, self.batches
        negatives = part.groups.negatives[part.chosen]
        positives = int(part.groups.positives[part.chosen].sum())
        counts = f"{positives:,} positives and {int(negatives.sum()):,} hard negatives"
        notes = [
            *part.prepared.notes,
            f"pairs: {len(part.chosen):,} queries with {counts}; {asked.global_batch} a step",
        ]
        if not batches.full:
            notes.append(f"all {batches.groups_per_epoch:,} queries are one step: embedding.global_batch asks for more")
        notes.append(self.recipe)
        if few := int(np.count_nonzero(negatives < asked.negatives)):
            notes.append(
                f"{few:,} queries have fewer hard negatives than embedding.negatives {asked.negatives}, and use those"
            )
        if batches.left_out:
            notes.append(
                f"{batches.left_out:,} queries, others in each epoch, are left out: the last batch would not be full"
            )
        if self.validation and (unused := self.judged(self.validation).left_out):
            notes.append(f"{unused:,} held-out pairs are not evaluated: their batch would not be full")
        return notes + (self.rows.notes if self.rows else [])

    @property
    def recipe(self) -> str:
        """How texts become vectors, and what the loss is, in a line."""
        asked, train = self.config.embedding, self.config.train
        pooled = "instruction and text" if asked.pool_instruction else "the text, its instruction attended to"
        negatives = "every passage of the step" if asked.in_batch else "its own hard negatives"
        line = (
            f"embedding: template {self.train.prepared.template}, {asked.attention} attention, {asked.pooling} pooling "
            f"of {pooled}; a query is compared with {negatives} at temperature {asked.temperature:g}"
        )
        if self.rows is None:
            return line
        return f"{line}; loss: {asked.weight:g} x contrastive + {train.generative_weight:g} x {train.generative_loss}"

    def as_dict(self) -> dict[str, Any]:
        """Sources with their digests, in the order of the configuration, for the run record."""
        rows = self.rows.as_dict() if self.rows else {"cache": {}, "sources": [], "validation_sources": []}
        own = [each.as_dict() for each in self.train.prepared.sources]
        by_path = {each["path"]: each for each in [*own, *rows["sources"]]}
        apart = self.validation.prepared if self.validation and self.config.data.validation_files else None
        held_out = [each.as_dict() for each in apart.sources] if apart else []
        judged = {each["path"]: each for each in [*held_out, *rows["validation_sources"]]}
        return {
            **rows,
            "cache": {**rows["cache"], "pairs": self.train.prepared.key},
            "sources": [by_path[source.path] for source in self.config.data.sources],
            "validation_sources": [judged[path] for path in self.config.data.validation_files.values()],
            "pairs": len(self.train.chosen),
            "pairs_left_out": self.batches.left_out,
            "embedding_template": self.train.prepared.template,
        }


def described_pairs(
    config: RunConfig, pairs: int, *, mean_tokens: int, longest_tokens: int, learned_share: float
) -> DataFacts:
    """Counts for the plan of pairs that are only described, and of as many rows beside them as a step wants.

    Each document and row has `mean_tokens`; `learned_share` of a row's is learned.
    """
    asked, steps = config.embedding, max(1, pairs // config.embedding.global_batch)
    documents = steps * min(pairs, asked.global_batch) * (2 + asked.negatives)
    answered = steps * config.train.global_batch if config.objective_spec.answers else 0
    lengths = [asked.query_length, asked.passage_length]
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
