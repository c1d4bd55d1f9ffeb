"""Sources to samples: records read, their format detected, each row converted or refused with its line."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from loradock.config.schema import SourceConfig
from loradock.data.formats import FORMATS, Format, RowError, Sample, Undetected, convert_row, detect, named
from loradock.data.read import Record, read
from loradock.errors import ConfigError, Problem

Loaded = tuple[int | None, Sample | Problem]
"""A line (or row number, see `Record`) and the sample or the problem that stands there."""


def samples(source: SourceConfig, *, index: int = 0) -> Iterator[Loaded]:
    """The samples of a source in file order, with a Problem in the place of each row that cannot be used.

    With `format: auto` the first readable row decides the format for all. Where it fits none, that is one problem,
    and the rest of the source is only read for records that are broken in themselves. `index` is the source's place
    in `data.sources`, for hints. Raises ConfigError for an unknown format or field, and what `read` raises.
    """
    named_format = _named(source)
    records = read(source)
    for record in records:
        if record.row is None:
            yield _broken(record, source)
            continue
        try:
            format = named_format or detect(record.row.keys(), mapping=source.fields, index=index)
        except Undetected as error:
            yield record.line, Problem(what=str(error), file=source.path, line=record.line, hint=error.hint)
            yield from (_broken(later, source) for later in records if later.row is None)
        else:
            yield from _converted(format, chain((record,), records), source)


def _converted(format: Format, records: Iterator[Record], source: SourceConfig) -> Iterator[Loaded]:
    """The samples of the records, and a problem for each mapped column that none of them has."""
    mapping, path = source.fields, source.path
    unseen = {column for field, column in mapping.items() if field not in format.required}
    for record in records:
        line, row, _ = record
        if row is None:
            yield _broken(record, source)
            continue
        try:
            yield line, convert_row(format, mapping, row)
        except RowError as error:
            yield line, Problem(what=str(error), file=path, line=line)
        if unseen:
            unseen.difference_update(row)
    for column in sorted(unseen):
        fields = ", ".join(field for field, mapped in mapping.items() if mapped == column)
        yield None, Problem(what=f"{fields} is mapped to column {column!r}, which no row has", file=path)


def _broken(record: Record, source: SourceConfig) -> Loaded:
    return record.line, Problem(what=str(record.problem), file=source.path, line=record.line)


def _named(source: SourceConfig) -> Format | None:
    """The format that the source names, None for auto; ConfigError where it lacks a mapped field."""
    format = None if source.format == "auto" else named(source.format)
    candidates = FORMATS if format is None else (format,)
    if any(set(source.fields).issubset(candidate.fields) for candidate in candidates):
        return format
    fields = "; ".join(f"{candidate.name}: {', '.join(candidate.fields)}" for candidate in candidates)
    raise ConfigError(
        f"{source.path}: {', '.join(source.fields)} {'is a field' if len(source.fields) == 1 else 'are fields'} "
        f"of no {'format' if format is None else f'{format.name} row'}",
        hint=f"left of the colon stands the format's field, right of it your column; fields: {fields}",
    )
