"""Rows to answer from: each is a sample of one document, whose learned tokens are predicted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from loradock.catalog.samples import SampleKind
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig
from loradock.data.pool import Work
from loradock.data.prepared import Prepared
from loradock.data.read import has_text
from loradock.data.row_steps import RowDraw, RowOrder, RowTurns, steps_per_epoch
from loradock.data.row_task import Task
from loradock.data.samples.base import Part, Preparing, SampleSet
from loradock.data.select import UNCUT_TOKENS, EpochOrder, Fitted, fit
from loradock.data.sources import held_out_files
from loradock.data.steps import BatchShape, Draw, Int64, Ranks, Stream, Turns
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import DataError
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan

LEARNED = {
    "auto": "assistant turns and completions, not prompts",
    "completion": "the last answer of each row, not prompts and earlier answers",
    "assistant": "assistant turns, not prompts",
    "all": "all tokens",
}
"""What each value of data.loss learns."""


@dataclass(frozen=True, kw_only=True)
class RowPart(Part):
    """Rows, and the samples that they are at the longest allowed length."""

    fitted: Fitted

    @property
    def used(self) -> str:
        """Their number, tokens and places."""
        fitted = self.fitted
        columns = [fitted.rows.astype("<i8"), fitted.starts.astype("<i4"), fitted.lengths.astype("<i4")]
        columns += [fitted.contexts.astype("<i4")] * bool(fitted.overlapped[0])  # none before data.overlap
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        return f"{len(fitted.rows)} samples, {fitted.tokens} tokens, {digest}"

    @classmethod
    def of(cls, prepared: Prepared, chosen: Int64, *, data: DataConfig, max_length: int) -> Self:
        """The part at this length. DataError where too much of it is left out."""
        fitted = fit(prepared, rows=chosen, max_length=max_length, long_rows=data.long_rows, overlap=data.overlap)
        check_dropped(fitted, max_dropped=data.max_dropped)
        return cls(prepared=prepared, chosen=chosen, fitted=fitted)


@dataclass(frozen=True, kw_only=True)
class RowSamples(SampleSet):
    """The rows, and the template that they were rendered with."""

    kind: ClassVar[SampleKind] = "rows"
    part: ClassVar[type[RowPart]] = RowPart
    task: ClassVar[Callable[[DataConfig, TokenizerSpec], Work]] = Task.of
    draw: ClassVar[Callable[..., Draw]] = RowDraw
    in_turns: ClassVar[Callable[..., Turns]] = RowTurns
    groups: ClassVar[Callable[[Prepared, Int64], Int64] | None] = None
    train: RowPart
    validation: RowPart | None
    chat: ChatTemplate

    @classmethod
    def of(cls, config: RunConfig, preparing: Preparing) -> Self:
        """See `SampleSet.of`; rows are fitted to `preparing.max_length`."""
        data = config.data
        division = preparing.divided(data, cls.task, groups=cls.groups)
        trained, judged = division.prepared, division.judged
        chosen = trained.documents_of(division.samples)
        limit = preparing.max_length
        if not isinstance(limit, int):
            limit = limit(int((trained.offsets[chosen + 1] - trained.offsets[chosen]).max(initial=0)))
        return cls(
            config=config,
            train=cls.part.of(trained, chosen, data=data, max_length=limit),
            validation=judged
            and cls.part.of(judged[0], judged[0].documents_of(judged[1]), data=data, max_length=limit),
            chat=TokenizerSpec.of(preparing.tokenizer).template(data.template),
            selection=division.selection,
        )

    @property
    def parts(self) -> Mapping[str, RowPart]:
        """See `SampleSet`."""
        return {name: part for name, part in (("train", self.train), ("validation", self.validation)) if part}

    @property
    def facts(self) -> DataFacts:
        """See `SampleSet`."""
        fitted = self.train.fitted
        order = EpochOrder(self.train.prepared, fitted=fitted, seed=self.config.train.seed)
        return DataFacts(
            train_rows=len(fitted.rows),
            validation_rows=len(self.validation.fitted.rows) if self.validation else 0,
            tokens=fitted.tokens,
            supervised_tokens=fitted.supervised_tokens,
            limit_tokens=fitted.max_length,
            longest_tokens=int(fitted.lengths.max()),
            samples_per_epoch=len(order),
            steps_per_epoch=steps_per_epoch(len(order), global_batch=self.config.train.global_batch),
            epoch_tokens=int(fitted.lengths[order(0)].sum(dtype=np.int64)),
            truncated_rows=fitted.over_long - fitted.dropped if self.config.data.long_rows != "split" else 0,
            split_rows=fitted.over_long - fitted.dropped if self.config.data.long_rows == "split" else 0,
            dropped_rows=fitted.dropped,
            lost_tokens=fitted.lost_tokens,
            template=self.rendered_with,
        )

    @property
    def samples_a_step(self) -> int:
        """See `SampleSet`."""
        return self.config.train.global_batch

    @property
    def rendered_with(self) -> tuple[str, str]:
        """The template that the rows are rendered with, "none" where they have no turns, and where it comes from."""
        prepared, template = self.train.prepared, self.chat
        raw = prepared.rows - prepared.conversations
        if not prepared.conversations:
            return "none", "all rows are text without turns"
        return template.name, template.origin + (f"; {raw:,} of {prepared.rows:,} rows are text without it" * bool(raw))

    def at_length(self, max_length: int) -> Self:
        """The same rows at another longest length. DataError where too much of them is left out."""

        def fitted(part: RowPart) -> RowPart:
            return self.part.of(part.prepared, part.chosen, data=self.config.data, max_length=max_length)

        return replace(self, train=fitted(self.train), validation=self.validation and fitted(self.validation))

    def stream(self, plan: Plan, *, facts: Facts) -> Stream:
        """See `SampleSet`."""
        part, train = self.train, self.config.train
        order = RowOrder(
            EpochOrder(part.prepared, fitted=part.fitted, seed=train.seed), global_batch=train.global_batch
        )
        ranks = Ranks(world_size=facts.world_size, rank=facts.rank)
        return Stream(order, self.draw(part.prepared, fitted=part.fitted, shape=self.shape(plan), ranks=ranks))

    def turns(self, plan: Plan, *, facts: Facts) -> Turns | None:
        """See `SampleSet`."""
        if self.validation is None:
            return None
        return self.in_turns(
            self.validation.prepared,
            fitted=self.validation.fitted,
            names=tuple(name for name in self.config.data.validation_files if name),
            shape=self.shape(plan),
            ranks=Ranks(world_size=facts.world_size, rank=facts.rank),
        )

    def shape(self, plan: Plan) -> BatchShape:
        """Of the micro-batches of a plan."""
        return BatchShape(
            micro_batch=plan.micro_batch.value,
            packing=plan.packing.value,
            max_length=self.train.fitted.max_length,
        )

    @property
    def template(self) -> ChatTemplate:
        """See `SampleSet`."""
        return self.chat

    @property
    def notes(self) -> list[str]:
        """How rows were prepared, which share of them is learned, and what is not."""
        fitted, loss = self.train.fitted, self.config.data.loss
        share = fitted.supervised_tokens / max(1, fitted.tokens)
        counts = f"{fitted.supervised_tokens:,} of {fitted.tokens:,} tokens ({share:.0%})"
        rows = self.train.prepared
        is_text = not rows.conversations and all(source.contents.format == "text" for source in rows.sources)
        learned = "whole texts" if is_text and loss == "auto" else LEARNED[loss]
        judged = self.validation.prepared if self.validation else self.train.prepared
        skipped = judged.skipped_rows if judged is not self.train.prepared else 0
        bad = [f"{skipped:,} rows of the validation files are bad and left out (data.on_bad_row skip)"] * bool(skipped)
        return [
            *self.train.prepared.notes,
            *bad,
            *self.selection_notes,
            *self.overlap_notes,
            *self.idle_notes,
            f"learned: {counts}: {learned} (data.loss {loss})",
        ]

    @property
    def idle_notes(self) -> list[str]:
        """That a choice of what a text file's documents are has no effect where there is no text file."""
        data = self.config.data
        if data.text == "file" or any(map(has_text, (*data.sources, *held_out_files(data)))):
            return []
        return [f"data.text {data.text} has no effect: no source is a text file"]

    @property
    def overlap_notes(self) -> list[str]:
        """What data.overlap does, where the rows are split at a length."""
        fitted, overlap = self.train.fitted, self.config.data.overlap
        if not overlap or fitted.max_length == UNCUT_TOKENS:
            return []
        documents, tokens = fitted.overlapped
        if not tokens:
            return [f"data.overlap has no effect: no document of text is longer than {fitted.max_length:,} tokens"]
        what = f"documents of text split with an overlap of {overlap} tokens (data.overlap): {documents:,}"
        return [f"{what}; {tokens:,} tokens are context a second time, and none is learned twice"]

    def as_dict(self) -> dict[str, Any]:
        """What truncation costs, and how rows were rendered."""
        fitted, prepared = self.train.fitted, self.train.prepared
        return {
            "over_long_rows": fitted.over_long,
            "dropped_rows": fitted.dropped,
            "skipped_rows": prepared.skipped_rows,
            "short_rows": self.selection.short,
            "duplicate_rows": self.selection.copies,
            "overlap_tokens": fitted.overlapped[1],
            "lost_tokens": fitted.lost_tokens,
            "lost_supervised_tokens": fitted.lost_supervised_tokens,
            "template": prepared.template,
            "conversations": prepared.conversations,
            "date": prepared.date,
        }


def check_dropped(fitted: Fitted, *, max_dropped: float) -> None:
    """DataError where a larger share of the rows than `max_dropped` is left out."""
    rows = len(fitted.rows) + fitted.dropped
    if fitted.dropped <= max_dropped * rows:
        return
    share = fitted.dropped / rows
    raise DataError(
        f"{fitted.dropped:,} of {rows:,} rows ({share:.1%}) would be left out: over {fitted.max_length} tokens, "
        f"or nothing to learn within them; data.max_dropped allows {max_dropped:.0%}",
        hint="--set data.long_rows=split learns all of them; `loradock data stats` shows what a data.max_length keeps; "
        f"or allow it: --set data.max_dropped={math.ceil(share * 100) / 100:g}",
    )
