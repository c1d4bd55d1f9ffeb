"""Sources to samples: records read, their format detected, each row converted or refused with its line."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from loradock.catalog.objectives.base import MARGINS_UNREAD
from loradock.catalog.samples import SampleKind
from loradock.config.sections.data import DataConfig, Reading, SourceConfig
from loradock.data.columns import Columns, Contents
from loradock.data.formats import FORMATS, Format, RowError, Sample, Undetected, convert_row, detect, named, renamed
from loradock.data.formats.fields import Misfit, Row, listed
from loradock.data.formats.guess import can_be, guess, options, setting
from loradock.data.preference import Preference, refuse_pairs, refuse_verdict
from loradock.data.problems import BadRow
from loradock.data.read import Record, on_disk, place_of, read, shown_files
from loradock.data.readers.base import RowFlaw
from loradock.data.remedies import command_on, in_the_file, mending
from loradock.errors import ConfigError, Problem

Loaded = tuple[int | None, Sample | Problem]
"""A line (or row number, see `Record`) and the sample or the problem that stands there."""

EXCERPT_CHARACTERS = 80
MISFITS_HELD = 1000
"""So many rows that do not fit, and none before them that does, tell the configuration's mistake."""


def samples(
    source: SourceConfig,
    *,
    index: int = 0,
    contents: Contents | None = None,
    kinds: Collection[SampleKind] = (),
    unread_fields: Collection[str] = MARGINS_UNREAD,
) -> Generator[Loaded, None, None]:
    """The samples of a source in file order, with a Problem in the place of each row that cannot be used.

    With `format: auto` the first readable row decides the format for all. Where it fits none, or is preference data,
    that is one problem, and the rest of the source is only read for records that are broken in themselves. `index` is
    the source's place in `data.sources` and `kinds` what is learned from, for hints; `contents` is filled in on the
    way. A row in which one of `unread_fields` is wrong is read without it, and the column counted as not used.
    Raises ConfigError for an unknown format or field and for one that no row fits, and what `read` raises.
    """
    unread = frozenset(source.fields.get(field, field) for field in unread_fields)
    reading = _Reading(source, index, contents or Contents(), unread)
    format = format_asked(source, index=index)
    for record in reading.records:
        row = reading.row_of(record)
        if row is None:
            yield reading.broken(record)
            continue
        try:
            refuse_pairs(row, source, index=index)
            format = format or detect(row, mapping=source.fields, index=index, kinds=kinds)
        except (Undetected, Preference) as error:
            if source.fields and isinstance(error, Undetected):
                hint = unmapped(row, source.fields, index=index) or error.hint
                raise ConfigError(f"data.sources.{index}: {source.path}: {error}", hint=hint) from None
            yield record.line, reading.problem(record, error)
            yield from (reading.broken(later) for later in reading.records if later.row is None)
        else:
            reading.contents.format = format.name
            yield from reading.converted(format, chain((record,), reading.records))


def unmapped(row: Row, mapping: Mapping[str, str], *, index: int) -> str:
    """What to type where the first row of a source lacks mapped columns, and no other can be meant; else nothing."""
    missing = {field for field, column in mapping.items() if column not in row}
    present = {*renamed(mapping, row)} - missing

    def is_meant(format: Format) -> bool:
        fields = {*format.fields}
        return {*mapping} <= fields and {*format.required} <= present | missing and bool(fields & present)

    format = next(filter(is_meant, FORMATS), None)
    if not missing or format is None or can_be(format, guess(format, row, mapping), row):
        return ""
    which = listed([mapping[field] for field in sorted(missing)])
    return f"the first row lacks {which}: --set data.sources.{index}.format={format.name} names every row without it"


def format_of(source: SourceConfig, *, index: int = 0) -> str:
    """The name of the format that the source has: asked for, or that of its first readable row; else nothing."""
    if source.format != "auto":
        return source.format
    contents = Contents()
    with closing(samples(source, index=index, contents=contents)) as found:
        next((each for each in found if contents.format), None)
    return contents.format


class HeldOut(SourceConfig):
    """A separate validation file: no setting of a source is its own, so that hints name changes of the file."""


def held_out_files(data: DataConfig) -> tuple[SourceConfig, ...]:
    """The separate validation files as sources, by themselves; one that holds several splits is none of them."""
    files = (HeldOut(path=path, split="") for path in data.validation_files.values())
    return tuple(file.with_text_unit(data.text, cache=data.cache) for file in files)


def held_out(data: DataConfig) -> tuple[SourceConfig, ...]:
    """The separate validation files, read as the sources are as far as their first row has the columns that they name.

    Sources that are not read alike leave them to their own columns. Raises what `read` raises.
    """
    return tuple(_held_out(file, data=data) for file in held_out_files(data))


def _held_out(file: SourceConfig, *, data: DataConfig) -> SourceConfig:
    named = [Reading(**source.model_dump(include={*Reading.model_fields})) for source in data.sources]
    return file if any(each != named[0] for each in named) else read_as(file, named[:1])


def read_as(file: SourceConfig, readings: Sequence[Reading]) -> SourceConfig:
    """The source, read as far as its first row goes as that of the readings which has the most columns in common.

    Raises what `read` raises.
    """
    if not readings:
        return file
    with closing(read(file)) as records:
        row = next((record.row for record in records if record.row is not None), {})
    return file.model_copy(update=max((_fitting(row, each) for each in readings), key=lambda each: len(each["fields"])))


def _fitting(row: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """What a reading says of the columns that a row has."""
    given = {field: column for field, column in reading.fields.items() if column in row}
    is_fitting = reading.format != "auto" and named(reading.format).detect(frozenset(renamed(given, row)))
    ignored = tuple(column for column in reading.ignore if column in row)
    return {"format": reading.format if is_fitting else "auto", "fields": given, "ignore": ignored}


def check_fields(sources: Sequence[SourceConfig]) -> None:
    """ConfigError where a source maps a field that its format has not; no file is looked at."""
    for index, source in enumerate(sources):
        format_asked(source, index=index)


def format_asked(source: SourceConfig, *, index: int = 0) -> Format | None:
    """The format that the source names, None for auto; ConfigError where it lacks a mapped field."""
    format = None if source.format == "auto" else named(source.format, index=index)
    candidates = FORMATS if format is None else (format,)
    if any(set(source.fields).issubset(candidate.fields) for candidate in candidates):
        return format
    fields = "; ".join(f"{candidate.name}: {', '.join(candidate.fields)}" for candidate in candidates)
    are_fields = f"{', '.join(source.fields)} {'is a field' if len(source.fields) == 1 else 'are fields'}"
    raise ConfigError(
        f"data.sources.{index}.fields: {are_fields} of no {'format' if format is None else f'{format.name} row'}",
        hint=f"left of the colon stands the format's field, right of it your column; fields: {fields}",
    )


@dataclass
class _Reading:
    """One pass over a source: the columns that have been seen, and whether the configuration's format fits a row."""

    source: SourceConfig
    index: int
    contents: Contents
    unread: frozenset[str]
    seen: dict[str, None] = field(default_factory=dict[str, None])

    def __post_init__(self) -> None:
        self.files = shown_files(self.source)
        self.records = read(self.source, starts=self.contents.starts)

    def row_of(self, record: Record) -> Mapping[str, Any] | None:
        """The record's row without what is left out on purpose."""
        row, ignored = record.row, self.source.ignore
        if row is None:
            return None
        if len(self.seen) < len(row) or not row.keys() <= self.seen.keys():
            self.seen |= dict.fromkeys(row)
        return {name: value for name, value in row.items() if name not in ignored} if ignored else row

    def converted(self, format: Format, records: Iterator[Record]) -> Iterator[Loaded]:
        """The samples of the records; ConfigError where what the configuration names fits none of them."""
        source, columns = self.source, Columns(self.source, format, self.index)
        held: list[Loaded] = []
        misfit: Mapping[str, Any] = {}
        has_fitted = source.format == "auto" and not source.fields
        first: Record | None = None
        for record in records:
            row = self.row_of(record)
            if row is None:
                yield self.broken(record)
                continue
            first = first or record
            try:
                if format.kind == "rows":
                    refuse_verdict(row, index=self.index, first=first.row or {}, place=self.place(first))
                sample = self.sample(format, row, columns)
            except RowError as error:
                if isinstance(error, Misfit) and not has_fitted:
                    held.append((record.line, self.problem(record, error)))
                    misfit = row
                    self.refuse_misfits(format, held, misfit, limit=MISFITS_HELD)
                    continue
                found: Sample | Problem = self.problem(record, error)
            else:
                found = sample
            has_fitted = True
            yield from held
            held.clear()
            yield record.line, found
        if held:
            self.refuse_misfits(format, held, misfit, limit=1)
        self.refuse_unseen()
        self.contents.unused = columns.unused()

    def sample(self, format: Format, row: Mapping[str, Any], columns: Columns) -> Sample:
        """The sample of a row, with its columns counted; RowError where something is wrong in it that is read."""
        try:
            sample = convert_row(format, self.source.fields, row)
        except RowError as error:
            if error.ignorable not in self.unread:
                raise
            columns.count(error.ignorable, row[error.ignorable])
            rest = {name: value for name, value in row.items() if name != error.ignorable}
            return self.sample(format, rest, columns)
        columns.note(row, sample)
        return sample

    def refuse_misfits(self, format: Format, held: list[Loaded], row: Mapping[str, Any], *, limit: int) -> None:
        """ConfigError where so many rows do not fit, and none does."""
        if len(held) < limit:
            return
        _, first = held[0]
        assert isinstance(first, Problem)
        key, source = f"data.sources.{self.index}", self.source
        what = f"{key}: no row of {source.path} fits format {format.name}: {first.what}"
        mapping = {field: column for field, column in source.fields.items() if column in row}
        if can_be(format, guess(format, row, mapping), row):
            back = [field for field in source.fields if field not in mapping and field in row]
            sets = [setting(self.index, field, field) for field in back]
            more = options(format, row, mapping=mapping, index=self.index)
            raise ConfigError(what, hint=" ".join([*sets, more]).strip())
        try:
            other = detect(row, index=self.index).name
        except Undetected as error:
            hint = f"{error.hint} --set {key}.format=auto" if source.format != "auto" else error.hint
            raise ConfigError(what, hint=f"leave out {key}.fields; {hint}" if source.fields else hint) from None
        hint = f"--set {key}.format={other}"
        if source.fields or other == format.name:
            hint = f"the columns are {listed(row)}: {'leave out' if source.fields else 'give'} {key}.fields"
        raise ConfigError(what, hint=hint)

    def refuse_unseen(self) -> None:
        """ConfigError for a mapped or ignored column that no row has."""
        key, source = f"data.sources.{self.index}", self.source
        named = {f"{key}.fields.{field}": column for field, column in source.fields.items()}
        named |= {f"{key}.ignore": column for column in source.ignore if column not in self.seen}
        unseen = [f"{where} names column {column!r}" for where, column in named.items() if column not in self.seen]
        if unseen:
            raise ConfigError(
                f"{'; '.join(unseen)}, which no row of {source.path} has", hint=f"its columns: {listed(self.seen)}"
            )

    def place(self, record: Record) -> str:
        """Where a record stands in its file, in words."""
        _, line = place_of(self.files, self.contents.starts, record.line)
        return "the first row" if line is None else f"line {line}" if line > 0 else f"row {-line}"

    def problem(self, record: Record, error: RowError) -> Problem:
        """A row's problem at its place."""
        file, line = place_of(self.files, self.contents.starts, record.line)
        excerpt = excerpt_of(record.row) if line is not None and line < 0 else None
        hint, change = error.hint, error.change
        if error.ignorable:
            hint = f"--set 'data.sources.{self.index}.ignore=[{error.ignorable}]' leaves it out"
        if isinstance(self.source, HeldOut):
            change = change or in_the_file(hint)
            hint = "a validation file has no settings of its own" if change else None
        parts = [each for each in (hint, change and command_on(on_disk(self.source, file), change)) if each]
        kind = Problem if isinstance(error, (Undetected, Preference)) else BadRow
        return kind(what=str(error), file=file, line=line, hint=": ".join(parts) or None, excerpt=excerpt)

    def broken(self, record: Record) -> Loaded:
        """A record that could not be read, at its place."""
        file, line = place_of(self.files, self.contents.starts, record.line)
        kind = BadRow if isinstance(record.problem, RowFlaw) else Problem
        hint = mending(on_disk(self.source, file), record.problem)
        return record.line, kind(what=str(record.problem), file=file, line=line, hint=hint)


def excerpt_of(row: Mapping[str, Any] | None) -> str:
    """How a row begins, to find it in a file of one line."""
    text = json.dumps(row, ensure_ascii=False, default=str)
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[: EXCERPT_CHARACTERS - 3]}..."
