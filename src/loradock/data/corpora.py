"""The corpus of a run, by its objective: rows to answer from, pairs to embed, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from loradock.catalog.objectives import learning_from
from loradock.catalog.objectives.base import HELD, MISSING, SampleKind
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.corpus import Corpus, all_prepared, all_there, prepare_rows, prepared_by
from loradock.data.formats import named
from loradock.data.pair_corpus import PairCorpus, PairPart, check_batches
from loradock.data.pairs.groups import Groups, Int64, split
from loradock.data.prepared import Prepared
from loradock.data.sources import format_of, held_out
from loradock.errors import ConfigError
from loradock.facts import Facts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prepare_corpus(
    config: RunConfig,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | Callable[[int], int],
    facts: Facts,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus | PairCorpus:
    """Prepare (or find in the cache) every source, hold out the validation part, fit rows to `max_length` tokens.

    `max_length` may be a function of the tokens of the longest row that is trained on. Raises ConfigError where the
    sources are not of the objective, DataError with every bad row of every file, and what `data.prepare.prepare`
    raises.
    """
    all_there(config.data)
    of_pairs, of_rows = by_kind(config)

    def rows() -> Corpus:
        own = config.model_copy(update={"data": of_rows}) if of_pairs.sources else config
        return prepare_rows(own, tokenizer=tokenizer, max_length=max_length, facts=facts, progress=progress)

    spec = config.objective_spec
    if not spec.embeds:
        return rows()
    prepared = prepared_by(of_pairs, tokenizer, facts=facts, progress=progress, embedding=config.embedding)
    trained, judged = pair_parts(of_pairs, prepared)
    check_batches(trained, config=config)
    beside = rows() if spec.answers else None
    return PairCorpus(config=config, train=trained, validation=judged, rows=beside)


def pair_parts(data: DataConfig, prepared: Callable[[DataConfig], Prepared]) -> tuple[PairPart, PairPart | None]:
    """The pairs to train on and those to evaluate on."""

    def part(found: Prepared, chosen: Int64 | None = None) -> PairPart:
        groups = Groups.of(found)
        return PairPart(prepared=found, groups=groups, chosen=np.arange(len(groups)) if chosen is None else chosen)

    if isinstance(data.validation, str | dict):
        used, judged = all_prepared(prepared, [data, data.model_copy(update={"sources": held_out(data)})])
        return part(used), part(judged)
    found = prepared(data)
    trained, judged = split(found, Groups.of(found), validation=data.validation, seed=data.seed)
    return part(found, trained), part(found, judged) if len(judged) else None


def by_kind(config: RunConfig) -> tuple[DataConfig, DataConfig]:
    """The sources and validation files that hold pairs, and those that hold rows to answer from.

    ConfigError where the objective has no use for one of them, or lacks what it trains on.
    """
    data = config.data
    kinds: list[SampleKind] = [kind_of(source, index) for index, source in enumerate(data.sources)]
    check_kinds(config, kinds)
    files = data.validation_files
    judged = [kind_of(source, 0) for source in held_out(data)] if files else []

    def part(wanted: SampleKind) -> DataConfig:
        sources = tuple(source for source, kind in zip(data.sources, kinds, strict=True) if kind == wanted)
        own = {name: file for (name, file), kind in zip(files.items(), judged, strict=True) if kind == wanted}
        validation = data.validation if not files else (own.get("") or own or 0.0)
        return data.model_copy(update={"sources": sources, "validation": validation})

    return part("pairs"), part("rows")


def kind_of(source: SourceConfig, index: int) -> SampleKind:
    """What a source holds, by its format or by its first row; rows where none is found: preparing refuses it."""
    format = format_of(source, index=index)
    return named(format).kind if format else "rows"


def check_kinds(config: RunConfig, kinds: Sequence[SampleKind]) -> None:
    """ConfigError where the sources are not those of the objective."""
    spec, sources = config.objective_spec, config.data.sources
    useless = next((index for index, kind in enumerate(kinds) if kind not in spec.samples), None)
    if useless is not None:
        holds = f"{sources[useless].path} holds {HELD[kinds[useless]]}"
        what = f"data.sources.{useless}: {holds}; objective {spec.name} learns nothing of it"
        raise ConfigError(what, hint=f"--set objective={learning_from(kinds).name}, or leave the file out")
    missing = [MISSING[kind] for kind in sorted(spec.samples.difference(kinds))]
    if missing:
        what = f"objective {spec.name} learns from both kinds of rows, and the data hold no {', '.join(missing)}"
        hint = f"add a file of them (--data FILE --data FILE), or --set objective={learning_from(kinds).name}"
        raise ConfigError(what, hint=hint)
