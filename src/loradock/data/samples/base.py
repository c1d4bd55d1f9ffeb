"""A kind of samples: what a run holds of it. To add one: a module beside this one, and its line in `__init__`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from loradock.catalog.samples import KINDS, SampleKind
from loradock.config.places import cache_directory
from loradock.config.schema import RunConfig
from loradock.config.sections.data import DataConfig, SourceConfig
from loradock.data.pool import Work
from loradock.data.prepare import choose_workers, prepare
from loradock.data.prepared import Prepared
from loradock.data.read import files
from loradock.data.select import split
from loradock.data.selection import Deduplicate, Selection
from loradock.data.sources import held_out
from loradock.data.steps import Int64, Stream, Turns
from loradock.data.templates import ChatTemplate
from loradock.data.tokenise import TokenizerSpec
from loradock.errors import DataError
from loradock.facts import DataFacts, Facts
from loradock.plan.plan import Plan

MaxLength = int | Callable[[int], int]
"""The longest row in tokens, or a function that makes it of the longest one that is trained on."""


LEFT_OUT = "leave the file out"


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """What sources are prepared with, of whichever kind; `progress(rows, tokens)` is called as they come."""

    tokenizer: Any
    max_length: MaxLength
    facts: Facts
    progress: Callable[[int, int], None] | None = None

    def prepared(self, data: DataConfig, task: Callable[[DataConfig, TokenizerSpec], Work]) -> Prepared:
        """All sources of `data`, in as many processes as their size is worth. Raises as `prepare.prepare`."""
        workers = data.workers
        if workers == "auto":
            size = sum(file.stat().st_size for source in data.sources for file in files(source))
            workers = choose_workers(size, cpus=self.facts.cpus, memory_bytes=self.facts.memory_bytes)
        return prepare(
            data,
            tokenizer=self.tokenizer,
            cache_dir=cache_directory(data.cache),
            workers=workers,
            progress=self.progress,
            task=task,
        )

    def with_held_out(
        self, data: DataConfig, task: Callable[[DataConfig, TokenizerSpec], Work]
    ) -> tuple[Prepared, Prepared | None]:
        """The sources, and the validation files where there are any; bad rows of both are one DataError."""
        if not data.validation_files:
            return self.prepared(data, task), None
        made: list[Prepared] = []
        errors: list[DataError] = []
        for part in (data, data.model_copy(update={"sources": held_out(data)})):
            try:
                made.append(self.prepared(part, task))
            except DataError as error:
                errors.append(error)
        if len(errors) > 1:
            problems = [problem for error in errors for problem in error.problems]
            what = f"{'; '.join(error.what for error in errors)} to validate on"
            raise DataError(what, hint=max(errors, key=lambda error: error.share).hint, problems=problems)
        if errors:
            raise errors[0]
        trained, judged = made
        return trained, judged

    def divided(
        self,
        data: DataConfig,
        task: Callable[[DataConfig, TokenizerSpec], Work],
        *,
        groups: Callable[[Prepared, Int64], Int64] | None = None,
    ) -> Division:
        """The sources without short rows and copies, and what is held out of them or beside them.

        `groups`: of samples, as `select.split` takes it.
        """
        trained, apart = self.with_held_out(data, task)
        selection = selected(trained, data, deduplicate=data.deduplicate)
        if apart:
            judged = (apart, selected(apart, data).samples)
            return Division(prepared=trained, samples=selection.samples, judged=judged, selection=selection)
        assert isinstance(data.validation, int | float)
        samples, held_out = split(
            trained,
            validation=data.validation,
            seed=data.seed,
            samples=selection.samples,
            groups=groups and partial(groups, trained),
        )
        judged = (trained, held_out) if len(held_out) else None
        return Division(prepared=trained, samples=samples, judged=judged, selection=selection)


@dataclass(frozen=True, kw_only=True)
class Division:
    """Prepared rows, the `samples` of them to train on, and the prepared rows and samples to judge by, if any."""

    prepared: Prepared
    samples: Int64
    judged: tuple[Prepared, Int64] | None
    selection: Selection


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """Prepared samples, and those `chosen` among them: int64, ascending."""

    prepared: Prepared
    chosen: Int64

    @property
    @abstractmethod
    def used(self) -> str:
        """What a fingerprint holds of them."""


def selected(prepared: Prepared, data: DataConfig, *, deduplicate: Deduplicate = "off") -> Selection:
    """The samples that are long enough, up to data.max_dropped; without copies where that is asked for."""
    return Selection.of(prepared, min_tokens=data.min_tokens, max_dropped=data.max_dropped, deduplicate=deduplicate)


@dataclass(frozen=True, kw_only=True)
class SampleSet(ABC):
    """The samples of one kind: those to train on, and those held out where there are any.

    `config` names the sources of this kind alone: those whose format says `kind`; `selection` is what is taken of them.
    """

    kind: ClassVar[SampleKind]
    config: RunConfig
    train: Part
    validation: Part | None
    selection: Selection

    @classmethod
    @abstractmethod
    def of(cls, config: RunConfig, preparing: Preparing) -> Self:
        """Prepare the sources of `config`, hold out the validation part, fit both to their length.

        Raises DataError with every bad row of every file, and what else `prepare.prepare` raises.
        """

    @classmethod
    def instead(cls, source: SourceConfig, *, index: int) -> str:
        """What else may be done with a source of this kind, number `index`, of which the objective learns nothing."""
        return f"{LEFT_OUT} (data.sources.{index}: {source.path})"

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]:
        """All that is used, by the name that a fingerprint has for it."""

    @property
    @abstractmethod
    def facts(self) -> DataFacts:
        """Counts for the plan, as of a run that has no other kind."""

    @property
    @abstractmethod
    def samples_a_step(self) -> int:
        """How many a step takes where another kind decides what an epoch is."""

    def at_length(self, max_length: int) -> Self:
        """The same at another longest length; itself where its texts have lengths of their own."""
        return self

    @abstractmethod
    def stream(self, plan: Plan, *, facts: Facts) -> Stream:
        """The samples step after step, as this process sees them."""

    @abstractmethod
    def turns(self, plan: Plan, *, facts: Facts) -> Turns | None:
        """Those held out, as this process evaluates them; None where there are none."""

    def role_of(self, document: int) -> str:
        """What a prepared document for training is in its sample, in a word; empty where there is one kind of them."""
        roles = KINDS[self.kind].roles
        return roles[document % len(roles)] if roles else ""

    @property
    def template(self) -> ChatTemplate | None:
        """What conversations were rendered with; None where the kind has none."""
        return None

    @property
    def selection_notes(self) -> list[str]:
        """What is left out before any sample is held out."""
        return list(self.selection.notes(min_tokens=self.config.data.min_tokens))

    @property
    def idle_notes(self) -> list[str]:
        """Keys that have no effect on these sources."""
        return []

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What a user is told of them."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """For the run record, but the sources."""
