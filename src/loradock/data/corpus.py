"""The corpus of a run: its sources prepared, split and fitted, ready to give optimiser steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loradock.config.schema import DataConfig, RunConfig, SourceConfig
from loradock.data.dropped import check_dropped
from loradock.data.prepare import choose_workers, prepare
from loradock.data.prepared import Prepared
from loradock.data.read import files
from loradock.data.select import EpochOrder, Fitted, fit, split
from loradock.data.sources import held_out
from loradock.data.steps import EvalBatches, TrainSteps
from loradock.data.templates import resolve
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import DataError, InputMissing, LoradockError, Problem
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Part:
    """Prepared rows and those of them that are used, cut to the longest allowed length."""

    prepared: Prepared
    fitted: Fitted


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The training part, the validation part where there is one, and the template they were rendered with."""

    config: RunConfig
    train: Part
    validation: Part | None
    template: str

    @property
    def facts(self) -> DataFacts:
        """Counts for the plan."""
        fitted = self.train.fitted
        return DataFacts(
            train_rows=len(fitted.rows),
            validation_rows=len(self.validation.fitted.rows) if self.validation else 0,
            tokens=fitted.tokens,
            supervised_tokens=fitted.supervised_tokens,
            limit_tokens=fitted.max_length,
            longest_tokens=int(fitted.lengths.max()),
            samples_per_epoch=len(EpochOrder(self.train.prepared, fitted=fitted, seed=self.config.train.seed)),
            truncated_rows=fitted.over_long - fitted.dropped,
            dropped_rows=fitted.dropped,
            lost_tokens=fitted.lost_tokens,
        )

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
            micro_batch=plan.micro_batch.value,
            packing=plan.packing.value,
            world_size=facts.world_size,
            rank=facts.rank,
        )

    def as_dict(self) -> dict[str, Any]:
        """Sources with their digests, and what truncation costs, for the run record."""
        parts = {"train": self.train, "validation": self.validation}
        return {
            "cache": {name: part.prepared.key for name, part in parts.items() if part},
            "sources": [source.as_dict() for source in self.train.prepared.sources],
            "over_long_rows": self.train.fitted.over_long,
            "dropped_rows": self.train.fitted.dropped,
            "lost_tokens": self.train.fitted.lost_tokens,
            "lost_supervised_tokens": self.train.fitted.lost_supervised_tokens,
            "template": self.train.prepared.template,
        }


def prepare_corpus(
    config: RunConfig,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    facts: Facts,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Prepare (or find in the cache) every source, hold out the validation part, cut to `max_length` tokens.

    Raises DataError with every bad row of every file, and what else `data.prepare.prepare` raises.
    """
    data = config.data

    def prepared(part: DataConfig) -> Prepared:
        workers = data.workers
        if workers == "auto":
            size = sum(file.stat().st_size for source in part.sources for file in files(source))
            workers = choose_workers(size, cpus=facts.cpus, memory_bytes=facts.memory_bytes)
        return prepare(part, tokenizer=tokenizer, cache_dir=cache_directory(data), workers=workers, progress=progress)

    def fitted(rows: Prepared, chosen: Any) -> Part:
        cut = fit(rows, rows=chosen, max_length=max_length, long_rows=data.long_rows)
        check_dropped(cut, max_dropped=data.max_dropped)
        return Part(prepared=rows, fitted=cut)

    template = resolve(data.template, own=TokenizerSpec.of(tokenizer).chat_template).text
    if isinstance(data.validation, str):
        all_there([*data.sources, SourceConfig(path=data.validation)])
        file = held_out(data)
        both = all_prepared(prepared, [data, data.model_copy(update={"sources": (file,)})])
        used, judged = (fitted(each, np.arange(each.rows)) for each in both)
        return Corpus(config=config, train=used, validation=judged, template=template)
    all_there(data.sources)
    train = prepared(data)
    train_rows, validation_rows = split(train, validation=data.validation, seed=data.seed)
    return Corpus(
        config=config,
        train=fitted(train, train_rows),
        validation=fitted(train, validation_rows) if len(validation_rows) else None,
        template=template,
    )


def all_there(sources: Iterable[SourceConfig]) -> None:
    """Look for the files of every source before one is read: InputMissing or DataError, with all that are not there."""
    errors: list[LoradockError] = []
    for source in sources:
        try:
            files(source)
        except (InputMissing, DataError) as error:
            errors.append(error)
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
        return Path(data.cache).expanduser()
    if named := os.environ.get("LORADOCK_CACHE"):
        return Path(named) / "prepared"
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "loradock" / "prepared"
