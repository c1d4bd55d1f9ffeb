"""Labelled answers: a sample is an answer with its prompt, and whether it is desirable; of a pair, both answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from loradock.catalog.samples import SampleKind
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.pool import Work
from loradock.data.preference import liked_alone
from loradock.data.preferences.judgements import (
    JudgementDraw,
    JudgementTask,
    JudgementTurns,
    desirable,
    pairs_among,
    prompts_of,
)
from loradock.data.preferences.margins import margin_notes
from loradock.data.preferences.pairs import check_left_out, equal_answers, selected
from loradock.data.prepared import Prepared
from loradock.data.read import files_on_disk, read
from loradock.data.samples.base import Preparing
from loradock.data.samples.rows import RowPart, RowSamples
from loradock.data.select import Int64
from loradock.data.steps import Draw, Turns
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError
from loradock.text.amounts import counted

LARGEST_RATIO = 4 / 3
"""Of the summed weights of desirable to undesirable answers; the smallest is 1 (Ethayarajh et al. 2024, eq. 8)."""


@dataclass(frozen=True, kw_only=True)
class JudgementPart(RowPart):
    """Labelled answers, at the longest allowed length; none is split.

    `equal` pairs among them are left out: an answer that is both desirable and undesirable says nothing.
    """

    equal: int = 0

    @classmethod
    def of(cls, prepared: Prepared, chosen: Int64, *, data: DataConfig, max_length: int) -> Self:
        """See `RowPart`; DataError, too, where too many pairs have two equal answers, or all."""
        whole = "truncate" if data.long_rows == "truncate" else "drop"
        data = data.model_copy(update={"long_rows": whole, "overlap": 0})
        part = super().of(prepared, chosen, data=data, max_length=max_length)
        places = pairs_among(prepared, part.fitted)
        if not len(places):
            return part
        is_equal = equal_answers(prepared, selected(part.fitted, places.ravel()))
        equal = int(is_equal.sum())
        reasons = [f"{equal:,} have two equal answers"]
        if equal:
            others = len(part.fitted.rows) - places.size
            check_left_out(
                equal,
                pairs=len(places) + others,
                max_dropped=data.max_dropped,
                reasons=reasons,
                noun="pairs and answers" if others else "pairs",
            )
        kept = np.ones(len(part.fitted.rows), dtype=np.bool_)
        kept[places[is_equal]] = False
        return replace(part, fitted=selected(part.fitted, kept), equal=equal)

    @property
    def used(self) -> str:
        """Their number, tokens, places and labels."""
        labels = hashlib.sha256(desirable(self.prepared, self.fitted.rows).tobytes()).hexdigest()
        return f"{super().used}, labels {labels}"


@dataclass(frozen=True, kw_only=True)
class JudgementSamples(RowSamples):
    """Labelled answers to train on, and perhaps to evaluate on."""

    kind: ClassVar[SampleKind] = "judgements"
    part: ClassVar[type[RowPart]] = JudgementPart
    train: JudgementPart
    task: ClassVar[Callable[[DataConfig, TokenizerSpec], Work]] = JudgementTask.of
    draw: ClassVar[Callable[..., Draw]] = JudgementDraw
    in_turns: ClassVar[Callable[..., Turns]] = JudgementTurns
    groups: ClassVar[Callable[[Prepared, Int64], Int64] | None] = staticmethod(prompts_of)

    @classmethod
    def of(cls, config: RunConfig, preparing: Preparing) -> Self:
        """See `SampleSet.of`; ConfigError where checkpoints are judged by what the held-out answers do not have."""
        made = super().of(config, preparing)
        if made.validation and config.checkpoints.metric == "reward_margin":
            labels = desirable(made.validation.prepared, made.validation.fitted.rows)
            if labels.all() or not labels.any():
                labelled = "desirable" if labels.any() else "undesirable"
                what = f"checkpoints.metric reward_margin: all held-out answers are {labelled}"
                raise ConfigError(what, hint="--set checkpoints.metric=loss, or hold out answers of both labels")
        return made

    @classmethod
    def instead(cls, source: SourceConfig, *, index: int) -> str:
        """See `SampleSet`: what is done without the labels, or with the desirable answers alone."""
        with closing(read(source)) as records:
            row = next((record.row for record in records if record.row), None)
        if row is None:
            return super().instead(source, index=index)
        return liked_alone(row, source, index=index, files=files_on_disk(source))

    def role_of(self, document: int) -> str:
        """See `SampleSet`: the label."""
        return "desirable" if desirable(self.train.prepared, np.array([document]))[0] else "undesirable"

    @property
    def notes(self) -> list[str]:
        """What is reported of the samples: how many are desirable, and whether their weights balance them."""
        equal = f"{counted(self.train.equal, 'pair')} of equal answers left out: there is nothing to prefer"
        of_pairs = margin_notes(self.config, self.train.prepared.margins[self.train.fitted.rows])
        return [*super().notes, *[equal] * bool(self.train.equal), *of_pairs, *self._balance()]

    def as_dict(self) -> dict[str, Any]:
        """See `SampleSet`."""
        return super().as_dict() | {"equal_pairs": self.train.equal}

    def _balance(self) -> Iterator[str]:
        labels, options = desirable(self.train.prepared, self.train.fitted.rows), self.config.preference
        good, bad = int(np.count_nonzero(labels)), int(np.count_nonzero(~labels))
        yield f"labels: {good:,} desirable answers, {bad:,} undesirable ones"
        if not good or not bad:
            yield "warning: all answers have the same label: nothing says what is better than what"
            return
        ratio = options.desirable_weight * good / max(options.undesirable_weight * bad, 1e-12)
        if not 1 <= ratio <= LARGEST_RATIO:
            key, value = ("desirable", bad / good) if good < bad else ("undesirable", good / bad)
            yield (
                f"the desirable answers weigh {ratio:.2f} times the undesirable ones; the paper advises 1 to 1.33: "
                f"--set preference.{key}_weight={value:.3g}"
            )
