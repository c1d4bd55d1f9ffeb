"""The corpus of a run: its sources prepared, split and fitted, ready to give optimiser steps."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig
from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data.dropped import check_dropped
from loradock.data.prepare import choose_workers, prepare
from loradock.data.prepared import Prepared
from loradock.data.read import files
from loradock.data.select import EpochOrder, Fitted, fit, split
from loradock.data.sources import held_out, held_out_files
from loradock.data.steps import EvalBatches, TrainSteps, steps_per_epoch
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import ConfigError, DataError, InputMissing, LoradockError, Problem
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LEARNED = {
    "auto": "assistant turns and completions, not prompts",
    "completion": "the last answer of each row, not prompts and earlier answers",
    "assistant": "assistant turns, not prompts",
    "all": "all tokens",
}
"""What each value of data.loss learns."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Prepared rows, those `chosen` of them (int64), and the samples that they are at the longest allowed length."""

    prepared: Prepared
    chosen: Any
    fitted: Fitted

    @property
    def used(self) -> str:
        """What a fingerprint holds of the samples."""
        fitted = self.fitted
        columns = (fitted.rows.astype("<i8"), fitted.starts.astype("<i4"), fitted.lengths.astype("<i4"))
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        return f"{len(fitted.rows)} samples, {fitted.tokens} tokens, {digest}"

    @classmethod
    def of(cls, prepared: Prepared, chosen: Any, *, data: DataConfig, max_length: int) -> Part:
        """The part at this length. DataError where too much of it is left out."""
        fitted = fit(prepared, rows=chosen, max_length=max_length, long_rows=data.long_rows)
        check_dropped(fitted, max_dropped=data.max_dropped)
        return cls(prepared=prepared, chosen=chosen, fitted=fitted)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The training part, the validation part where there is one, and the template they were rendered with."""

    config: RunConfig
    train: Part
    validation: Part | None
    template: ChatTemplate

    @property
    def parts(self) -> dict[str, Part]:
        """All that is used, by name."""
        return {name: part for name, part in (("train", self.train), ("validation", self.validation)) if part}

    @property
    def facts(self) -> DataFacts:
        """Counts for the plan."""
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
    def rendered_with(self) -> tuple[str, str]:
        """The template that the rows are rendered with, "none" where they have no turns, and where it comes from."""
        prepared, template = self.train.prepared, self.template
        raw = prepared.rows - prepared.conversations
        if not prepared.conversations:
            return "none", "all rows are text without turns"
        return template.name, template.origin + (f"; {raw:,} of {prepared.rows:,} rows are text without it" * bool(raw))

    def at_length(self, max_length: int) -> Corpus:
        """The same rows at another longest length. DataError where too much of them is left out."""
        train, validation = (
            part and Part.of(part.prepared, part.chosen, data=self.config.data, max_length=max_length)
            for part in (self.train, self.validation)
        )
        assert train
        return replace(self, train=train, validation=validation)

    def steps(self, plan: Plan, *, facts: Facts) -> TrainSteps:
        """The optimiser steps of the plan, as this process sees them."""
        return TrainSteps(
            self.train.prepared,
            fitted=self.train.fitted,
            global_batch=self.config.train.global_batch,
            micro_batch=plan.micro_batch.value,
            packing=plan.packing.value,
            seed=self.config.train.seed,
            total_steps=plan.steps.value,
            world_size=facts.world_size,
            rank=facts.rank,
        )

    def evaluation(self, plan: Plan, *, facts: Facts) -> EvalBatches | None:
        """The validation part as micro-batches of this process; None where there is none."""
        if self.validation is None:
            return None
        return EvalBatches(
            self.validation.prepared,
            fitted=self.validation.fitted,
            names=tuple(name for name in self.config.data.validation_files if name),
            micro_batch=plan.micro_batch.value,
            packing=plan.packing.value,
            world_size=facts.world_size,
            rank=facts.rank,
        )

    @property
    def chat_template(self) -> str | None:
        """What a tokenizer is exported with: the template that was trained; None where all rows were raw text."""
        return self.template.text if self.train.prepared.conversations else None

    @property
    def notes(self) -> list[str]:
        """What a user is told of the rows: how they were prepared, which share of them is learned, and what is not."""
        fitted, loss = self.train.fitted, self.config.data.loss
        share = fitted.supervised_tokens / max(1, fitted.tokens)
        counts = f"{fitted.supervised_tokens:,} of {fitted.tokens:,} tokens ({share:.0%})"
        return [*self.train.prepared.notes, f"learned: {counts}: {LEARNED[loss]} (data.loss {loss})"]

    def as_dict(self) -> dict[str, Any]:
        """Sources with their digests, and what truncation costs, for the run record."""
        apart = self.validation.prepared if self.validation and self.config.data.validation_files else None
        return {
            "cache": {name: part.prepared.key for name, part in self.parts.items()},
            "sources": [source.as_dict() for source in self.train.prepared.sources],
            "validation_sources": [source.as_dict() for source in apart.sources] if apart else [],
            "over_long_rows": self.train.fitted.over_long,
            "dropped_rows": self.train.fitted.dropped,
            "lost_tokens": self.train.fitted.lost_tokens,
            "lost_supervised_tokens": self.train.fitted.lost_supervised_tokens,
            "template": self.train.prepared.template,
            "conversations": self.train.prepared.conversations,
            "date": self.train.prepared.date,
        }


def prepare_rows(
    config: RunConfig,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | Callable[[int], int],
    facts: Facts,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Prepare (or find in the cache) rows to answer from, hold out the validation part, fit to `max_length` tokens.

    `max_length` may be a function of the tokens of the longest row that is trained on.
    Raises DataError with every bad row of every file, and what else `data.prepare.prepare` raises.
    """
    data = config.data
    prepared = prepared_by(data, tokenizer, facts=facts, progress=progress)

    def corpus(train: tuple[Prepared, Any], validation: tuple[Prepared, Any] | None) -> Corpus:
        rows, chosen = train
        longest = int((rows.offsets[chosen + 1] - rows.offsets[chosen]).max(initial=0))
        tokens = max_length if isinstance(max_length, int) else max_length(longest)
        parts = [each and Part.of(*each, data=data, max_length=tokens) for each in (train, validation)]
        assert parts[0]
        return Corpus(config=config, train=parts[0], validation=parts[1], template=template)

    template = TokenizerSpec.of(tokenizer).template(data.template)
    if isinstance(data.validation, str | dict):
        both = all_prepared(prepared, [data, data.model_copy(update={"sources": held_out(data)})])
        used, judged = ((each, np.arange(each.rows)) for each in both)
        return corpus(used, judged)
    train = prepared(data)
    train_rows, validation_rows = split(train, validation=data.validation, seed=data.seed)
    return corpus((train, train_rows), (train, validation_rows) if len(validation_rows) else None)


def prepared_by(
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    facts: Facts,
    progress: Callable[[int, int], None] | None,
    embedding: EmbeddingConfig | None = None,
) -> Callable[[DataConfig], Prepared]:
    """What prepares a part of the data, in as many processes as its size is worth; pairs with `embedding`."""

    def prepared(part: DataConfig) -> Prepared:
        workers = data.workers
        if workers == "auto":
            size = sum(file.stat().st_size for source in part.sources for file in files(source))
            workers = choose_workers(size, cpus=facts.cpus, memory_bytes=facts.memory_bytes)
        where = cache_directory(data)
        return prepare(
            part, tokenizer=tokenizer, cache_dir=where, workers=workers, progress=progress, embedding=embedding
        )

    return prepared


def all_there(data: DataConfig) -> None:
    """Look for the files of every source before one is read: InputMissing or DataError, with all that are not there.

    ConfigError where two sources name the same file, however it is spelt: its rows would be read twice, and could be
    both trained on and held out.
    """
    errors: list[LoradockError] = []
    trained = {f"data.sources.{index}": source for index, source in enumerate(data.sources)}
    apart = zip(data.validation_files, held_out_files(data), strict=True)
    named = trained | {f"data.validation.{name}".rstrip("."): source for name, source in apart}
    readers: dict[Path, str] = {}
    twice: list[Problem] = []
    for key, source in named.items():
        try:
            for file in files(source):
                first = readers.setdefault(file.resolve(), key)
                if first != key and not (key in trained and source.format != trained[first].format):
                    twice.append(Problem(what=f"{file} is read by {first} and by {key}"))
        except (InputMissing, DataError) as error:
            errors.append(error)
    if twice:
        what = "a file is named twice: its rows could be both trained on and held out"
        raise ConfigError(what, hint="name it once; a source has a weight: weight: 2", problems=twice)
    if len(errors) > 1:
        problems = [Problem(what=error.what, hint=error.hint) for error in errors]
        raise type(errors[0])(f"{len(errors)} sources cannot be read", hint="fix each of them", problems=problems)
    if errors:
        raise errors[0]


def all_prepared(prepared: Callable[[DataConfig], Prepared], parts: Sequence[DataConfig]) -> list[Prepared]:
    """Each part prepared; where rows of several are bad, one DataError with the problems of all."""
    done: list[Prepared] = []
    errors: list[DataError] = []
    for part in parts:
        try:
            done.append(prepared(part))
        except DataError as error:
            errors.append(error)
    if len(errors) > 1:
        problems = [problem for error in errors for problem in error.problems]
        what = f"{'; '.join(error.what for error in errors)} to validate on"
        raise DataError(what, hint=errors[0].hint, problems=problems)
    if errors:
        raise errors[0]
    return done


def cache_directory(data: DataConfig) -> Path:
    """Where prepared data are kept: data.cache, else LORADOCK_CACHE, else loradock/ in the user's cache."""
    if data.cache:
        return Path(data.cache)
    if named := os.environ.get("LORADOCK_CACHE"):
        return Path(named) / "prepared"
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "loradock" / "prepared"
