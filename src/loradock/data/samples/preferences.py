"""Preference pairs: a sample is two documents, the chosen answer with its prompt and the rejected one with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from loradock.catalog.samples import SampleKind
from loradock.config.schema import RunConfig
from loradock.config.sections.data import SourceConfig
from loradock.data import preference
from loradock.data.preferences.margins import margin_notes
from loradock.data.preferences.pairs import A_PAIR, FittedPairs
from loradock.data.preferences.preparer import PreferenceTask
from loradock.data.preferences.steps import PreferenceDraw, PreferenceTurns
from loradock.data.prepared import Prepared
from loradock.data.read import files_on_disk, read
from loradock.data.row_steps import RowOrder, steps_per_epoch
from loradock.data.samples.base import Part, Preparing, SampleSet
from loradock.data.select import Int64
from loradock.data.steps import BatchShape, Ranks, Stream
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan
from loradock.text.amounts import counted, percent


@dataclass(frozen=True, kw_only=True)
class PreferencePart(Part):
    """Prepared pairs; `chosen` are places among them. `reads_margins`: the objective does."""

    fitted: FittedPairs
    reads_margins: bool

    @classmethod
    def of(cls, prepared: Prepared, chosen: Int64, *, config: RunConfig, max_length: int) -> Self:
        """The part at this length. DataError where too much of it is left out."""
        data = config.data
        fitted = FittedPairs.of(prepared, chosen, max_length=max_length, long_rows=data.long_rows)
        fitted.check(max_dropped=data.max_dropped, long_rows=data.long_rows)
        reads_margins = config.objective_spec.reads_margins
        return cls(prepared=prepared, chosen=chosen, fitted=fitted, reads_margins=reads_margins)

    @property
    def used(self) -> str:
        """Their number, tokens and places, and their margins where those are read."""
        documents = self.fitted.documents
        columns = (documents.rows.astype("<i8"), documents.lengths.astype("<i4"))
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        label = ""
        if self.reads_margins and self.margins.any():
            label = f", margins {hashlib.sha256(self.margins.astype('<f4').tobytes()).hexdigest()}"
        return f"{len(self.fitted)} preference pairs, {documents.tokens} tokens, {digest}{label}"

    @property
    def margins(self) -> np.ndarray[Any, Any]:
        """float32 [pairs]: by how much the chosen answers are better, as the rows say."""
        return self.prepared.margins[self.fitted.documents.rows[::A_PAIR]]


@dataclass(frozen=True, kw_only=True)
class PreferenceSamples(SampleSet):
    """Pairs to train on, and perhaps to evaluate on, and the template that they were rendered with."""

    kind: ClassVar[SampleKind] = "preferences"
    train: PreferencePart
    validation: PreferencePart | None
    chat: ChatTemplate

    @classmethod
    def of(cls, config: RunConfig, preparing: Preparing) -> Self:
        """See `SampleSet.of`; answers are fitted to `preparing.max_length`."""
        task = partial(PreferenceTask.of, unread_fields=config.objective_spec.unread_fields)
        division = preparing.divided(config.data, task)
        trained, judged = division.prepared, division.judged
        limit = preparing.max_length
        if not isinstance(limit, int):
            limit = limit(int(np.diff(trained.offsets).max(initial=0)))
        return cls(
            config=config,
            train=PreferencePart.of(trained, division.samples, config=config, max_length=limit),
            validation=judged and PreferencePart.of(*judged, config=config, max_length=limit),
            chat=TokenizerSpec.of(preparing.tokenizer).template(config.data.template),
            selection=division.selection,
        )

    @classmethod
    def instead(cls, source: SourceConfig, *, index: int) -> str:
        """See `SampleSet`: the better answers alone can be learned without preferences."""
        with closing(read(source)) as records:
            row = next((record.row for record in records if record.row), None)
        if row is None:
            return super().instead(source, index=index)
        return preference.instead(row, source, index=index, files=files_on_disk(source))

    @property
    def parts(self) -> Mapping[str, PreferencePart]:
        """See `SampleSet`."""
        named = (("preferences", self.train), ("preferences_validation", self.validation))
        return {name: part for name, part in named if part}

    @property
    def facts(self) -> DataFacts:
        """Counted in documents, two a pair; see `SampleSet`."""
        fitted, train = self.train.fitted, self.config.train
        order, documents = fitted.order(self.train.prepared, seed=train.seed), fitted.documents
        return DataFacts(
            train_rows=len(documents.rows),
            validation_rows=len(self.validation.fitted.documents.rows) if self.validation else 0,
            tokens=documents.tokens,
            supervised_tokens=documents.supervised_tokens,
            limit_tokens=documents.max_length,
            longest_tokens=int(documents.lengths.max()),
            samples_per_epoch=A_PAIR * len(order),
            steps_per_epoch=steps_per_epoch(len(order), global_batch=train.global_batch),
            epoch_tokens=int(fitted.lengths[order(0)].sum(dtype=np.int64)),
            truncated_rows=documents.over_long - documents.dropped,
            dropped_rows=A_PAIR * (fitted.over_long + fitted.equal),
            lost_tokens=documents.lost_tokens,
            together=A_PAIR,
            template=self.rendered_with,
        )

    @property
    def samples_a_step(self) -> int:
        """See `SampleSet`."""
        return self.config.train.global_batch

    @property
    def rendered_with(self) -> tuple[str, str]:
        """The template that the answers are rendered with, and where it comes from; see `RowSamples`."""
        if not self.train.prepared.conversations:
            return "none", "all rows are text without turns"
        return self.chat.name, self.chat.origin

    def at_length(self, max_length: int) -> Self:
        """The same pairs at another longest length. DataError where too much of them is left out."""

        def fitted(part: PreferencePart) -> PreferencePart:
            return PreferencePart.of(part.prepared, part.chosen, config=self.config, max_length=max_length)

        return replace(self, train=fitted(self.train), validation=self.validation and fitted(self.validation))

    def stream(self, plan: Plan, *, facts: Facts) -> Stream:
        """See `SampleSet`."""
        part, train = self.train, self.config.train
        order = RowOrder(part.fitted.order(part.prepared, seed=train.seed), global_batch=train.global_batch)
        return Stream(order, self.draw(part, plan, facts=facts))

    def turns(self, plan: Plan, *, facts: Facts) -> PreferenceTurns | None:
        """See `SampleSet`."""
        if self.validation is None:
            return None
        return PreferenceTurns(
            self.validation.prepared,
            self.draw(self.validation, plan, facts=facts),
            fitted=self.validation.fitted,
            names=tuple(name for name in self.config.data.validation_files if name),
            processes=facts.world_size,
        )

    def draw(self, part: PreferencePart, plan: Plan, *, facts: Facts) -> PreferenceDraw:
        """How pairs of a part become passes under a plan."""
        return PreferenceDraw(
            part.prepared,
            fitted=part.fitted,
            shape=self.shape(plan),
            shares_prompts=self.config.preference.share_prompts,
            ranks=Ranks(world_size=facts.world_size, rank=facts.rank),
        )

    def shape(self, plan: Plan) -> BatchShape:
        """Of the micro-batches of a plan, in documents."""
        return BatchShape(
            micro_batch=plan.micro_batch.value,
            packing=plan.packing.value,
            max_length=self.train.fitted.documents.max_length,
        )

    @property
    def template(self) -> ChatTemplate:
        """See `SampleSet`."""
        return self.chat

    @property
    def notes(self) -> list[str]:
        """How many pairs there are, how their answers differ in length, and what is left out."""
        fitted = self.train.fitted
        documents = fitted.documents
        held_out = f", {len(self.validation.fitted):,} held out" if self.validation else ""
        counts = f"{documents.supervised_tokens:,} of {documents.tokens:,} tokens are of answers"
        longer = f"the chosen answer is the longer one in {percent(fitted.longer_chosen_share)} of them"
        line = f"preference pairs: {len(fitted):,}{held_out}; {counts}; {longer}"
        notes = [*self.train.prepared.notes, *self.selection_notes, line]
        notes += margin_notes(self.config, self.train.margins)
        if fitted.over_long:
            what = f"{fitted.over_long:,} pairs are left out: an answer has over {documents.max_length:,} tokens"
            cut = "; --set data.long_rows=truncate cuts them" if self.config.data.long_rows != "truncate" else ""
            notes.append(f"{what} with its prompt, and a pair is never split{cut}")
        if fitted.equal:
            notes.append(f"{counted(fitted.equal, 'pair')} of equal answers left out: there is nothing to prefer")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Their number, what is left out, and how they were rendered."""
        fitted, prepared = self.train.fitted, self.train.prepared
        return {
            "preference_pairs": len(fitted),
            "over_long_pairs": fitted.over_long,
            "equal_pairs": fitted.equal,
            "longer_chosen_share": fitted.longer_chosen_share,
            "skipped_rows": prepared.skipped_rows,
            "short_pairs": self.selection.short,
            "duplicate_pairs": self.selection.copies,
            "template": prepared.template,
            "conversations": prepared.conversations,
            "date": prepared.date,
        }
