"""The corpus of a run: its sources prepared, split and fitted, ready to give optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.catalog.objectives import learning_from
from loradock.catalog.samples import KINDS, SampleKind
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.formats import extra_of
from loradock.data.read import files, read
from loradock.data.samples import SAMPLES, kind_of
from loradock.data.samples.base import LEFT_OUT, MaxLength, Part, Preparing, SampleSet
from loradock.data.samples.rows import RowSamples
from loradock.data.sources import format_of, held_out, held_out_files
from loradock.data.steps import Evaluation, Steps, Turns
from loradock.data.templates import ChatTemplate
from loradock.errors import ConfigError, DataError, InputMissing, LoradockError, Problem
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The samples of each kind that the objective learns from, the kind first that decides what an epoch is."""

    config: RunConfig
    sets: Mapping[SampleKind, SampleSet]

    @property
    def leading(self) -> SampleSet:
        """The samples that decide what an epoch is."""
        return next(iter(self.sets.values()))

    @property
    def rows(self) -> RowSamples | None:
        """The rows to answer from, where there are any."""
        return next((samples for samples in self.sets.values() if isinstance(samples, RowSamples)), None)

    @property
    def parts(self) -> dict[str, Part]:
        """All that is used, by name."""
        return {name: part for samples in self.sets.values() for name, part in samples.parts.items()}

    @property
    def facts(self) -> DataFacts:
        """Counts for the plan: all kinds as an epoch of the first one sees them."""
        facts = self.leading.facts
        for samples in list(self.sets.values())[1:]:
            facts = beside(facts, samples.facts, samples_a_step=samples.samples_a_step)
        return facts

    def at_length(self, max_length: int) -> Corpus:
        """The same samples at another longest length. DataError where too much of them is left out."""
        return replace(self, sets={kind: samples.at_length(max_length) for kind, samples in self.sets.items()})

    def steps(self, plan: Plan, *, facts: Facts) -> Steps:
        """The optimiser steps of the plan, as this process sees them."""
        return Steps(
            {kind: samples.stream(plan, facts=facts) for kind, samples in self.sets.items()},
            total_steps=plan.steps.value,
        )

    def evaluation(self, plan: Plan, *, facts: Facts) -> Evaluation | None:
        """What is held out, as this process evaluates it; None where there is nothing."""
        turns: dict[SampleKind, Turns] = {}
        for kind, samples in self.sets.items():
            apart = samples.turns(plan, facts=facts)
            if apart is not None:
                turns[kind] = apart
        return Evaluation(turns) if turns else None

    @property
    def template(self) -> ChatTemplate:
        """What conversations were rendered with; nothing where no kind has any."""
        templates = (samples.template for samples in self.sets.values())
        return next((template for template in templates if template), ChatTemplate("none", ""))

    @property
    def chat_template(self) -> str | None:
        """What a tokenizer is exported with: the template that was trained; None where all rows were raw text."""
        return self.template.text if any(part.prepared.conversations for part in self.parts.values()) else None

    @property
    def notes(self) -> list[str]:
        """What a user is told of the samples."""
        return [note for samples in self.sets.values() for note in samples.notes]

    def as_dict(self) -> dict[str, Any]:
        """Sources with their digests in the order of the configuration, and what each kind says, for the run record."""
        content = {name: value for samples in self.sets.values() for name, value in samples.as_dict().items()}
        held_out_apart = [part for part in (each.validation for each in self.sets.values()) if part]
        return {
            "cache": {name: part.prepared.key for name, part in self.parts.items()},
            "sources": in_order(self.config.data.sources, [samples.train for samples in self.sets.values()]),
            "validation_sources": in_order(held_out(self.config.data), held_out_apart)
            if self.config.data.validation_files
            else [],
            **content,
        }


def in_order(sources: Sequence[SourceConfig], parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The prepared sources of several kinds as the configuration names them, for the run record.

    A file may be read in two formats, as rows of two kinds.
    """
    waiting = [source for part in parts for source in part.prepared.sources]
    ordered: list[dict[str, Any]] = []
    for source in sources:
        places = [index for index, prepared in enumerate(waiting) if prepared.path == source.path]
        place = max(places, key=lambda index: waiting[index].contents.format == source.format)
        ordered.append(waiting.pop(place).as_dict())
    return ordered


def beside(facts: DataFacts, others: DataFacts, *, samples_a_step: int) -> DataFacts:
    """The facts of a kind that decides what an epoch is, with those of another of which each step takes some."""
    count = min(samples_a_step, others.samples_per_epoch) * facts.steps_per_epoch
    tokens = round(count * others.mean_tokens)
    return replace(
        facts,
        train_rows=facts.train_rows + count,
        validation_rows=facts.validation_rows + others.validation_rows,
        tokens=facts.tokens + tokens,
        supervised_tokens=facts.supervised_tokens + round(count * others.supervised_tokens / max(1, others.train_rows)),
        limit_tokens=max(facts.limit_tokens, others.limit_tokens),
        longest_tokens=max(facts.longest_tokens, others.longest_tokens),
        samples_per_epoch=facts.samples_per_epoch + count,
        epoch_tokens=facts.epoch_tokens + tokens,
        truncated_rows=facts.truncated_rows + others.truncated_rows,
        split_rows=facts.split_rows + others.split_rows,
        dropped_rows=facts.dropped_rows + others.dropped_rows,
        lost_tokens=facts.lost_tokens + others.lost_tokens,
        template=others.template,
    )


def prepare_corpus(
    config: RunConfig,
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_length: MaxLength,
    facts: Facts,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Prepare (or find in the cache) every source, hold out the validation part, fit rows to `max_length` tokens.

    Raises ConfigError where the sources are not of the objective, DataError with every bad row of every file, and what
    `data.prepare.prepare` raises.
    """
    all_there(config.data)
    preparing = Preparing(tokenizer=tokenizer, max_length=max_length, facts=facts, progress=progress)
    return Corpus(config=config, sets={kind.kind: kind.of(part, preparing) for kind, part in by_kind(config)})


def by_kind(config: RunConfig) -> list[tuple[type[SampleSet], RunConfig]]:
    """Each kind of samples that the objective learns from, and the configuration with the sources of that kind alone.

    ConfigError where the objective has no use for one of them, or lacks what it trains on.
    """
    data = config.data
    known = config.objective_spec.samples
    kinds = [learned_as(kind_of(format_of(each, index=index)), known) for index, each in enumerate(data.sources)]
    check_kinds(config, kinds)
    files = data.validation_files
    judged = [learned_as(kind_of(format_of(source, index=0)), known) for source in held_out(data)] if files else []
    check_held_out_kinds(config, judged)

    def part(kind: SampleKind) -> RunConfig:
        sources = tuple(source for source, found in zip(data.sources, kinds, strict=True) if found == kind)
        apart = {name: file for (name, file), found in zip(files.items(), judged, strict=True) if found == kind}
        validation = data.validation if not files else (apart.get("") or apart or 0.0)
        return config.model_copy(
            update={"data": data.model_copy(update={"sources": sources, "validation": validation})}
        )

    return [(kind, part(kind.kind)) for kind in SAMPLES if kind.kind in config.objective_spec.samples]


def learned_as(kind: SampleKind, known: Collection[SampleKind]) -> SampleKind:
    """The kind that rows of a kind are learned as, where the objective knows those: what can be made of them."""
    return kind if kind in known else next((each for each in known if kind in KINDS[each].takes), kind)


def check_kinds(config: RunConfig, kinds: Sequence[SampleKind]) -> None:
    """ConfigError where the sources are not those of the objective."""
    spec, sources = config.objective_spec, config.data.sources
    useless = next((index for index, kind in enumerate(kinds) if kind not in spec.samples), None)
    if useless is not None:
        holds = f"{sources[useless].path} holds {KINDS[kinds[useless]].holds}"
        what = f"data.sources.{useless}: {holds}; objective {spec.name} learns nothing of it"
        samples = next(each for each in SAMPLES if each.kind == kinds[useless])
        other = samples.instead(sources[useless], index=useless)
        if "rows" not in spec.samples and not other.startswith(LEFT_OUT):
            other = f"with --set objective=supervised: {other}"
        asked = [KINDS[kind].asked_for.replace("INDEX", str(useless)) for kind in sorted(spec.samples)]
        asked.insert(0, _other_format(sources[useless], index=useless, kinds=spec.samples))
        of_all = learning_from(kinds)
        objective = of_all.options if of_all.samples.issuperset(kinds) else ""
        raise ConfigError(what, hint=", or ".join(filter(None, (*asked, objective, other))))
    missing = [KINDS[kind].meaning for kind in sorted(spec.samples.difference(kinds))]
    if missing:
        what = f"objective {spec.name} learns from both kinds of rows, and the data hold no {', '.join(missing)}"
        hint = f"add a file of them (--data FILE --data FILE), or {learning_from(kinds).options}"
        raise ConfigError(what, hint=hint)


def _other_format(source: SourceConfig, *, index: int, kinds: Collection[SampleKind]) -> str:
    """What reads the rows of a source as ones of these kinds, where its first row is of such a format, too."""
    with closing(read(source)) as records:
        row = next((record.row for record in records if record.row), {})
    format = None if source.fields else extra_of(row, kinds)
    return f"--set data.sources.{index}.format={format.name}" if format else ""


def check_held_out_kinds(config: RunConfig, kinds: Sequence[SampleKind]) -> None:
    """ConfigError where a validation file is of a kind that the objective does not learn from, and could not judge."""
    spec = config.objective_spec
    for (name, file), kind in zip(config.data.validation_files.items(), kinds, strict=True):
        if kind not in spec.samples:
            key = f"data.validation.{name}".rstrip(".")
            what = f"{key}: {file} holds {KINDS[kind].holds}; objective {spec.name} is not evaluated on it"
            learned = " or ".join(KINDS[each].meaning for each in sorted(spec.samples))
            raise ConfigError(what, hint=f"--set data.validation=0.1, or a file of {learned}")


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
