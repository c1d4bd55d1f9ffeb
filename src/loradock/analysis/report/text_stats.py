"""What `data stats` shows a person where no model is named: tables of characters and words, and what a model adds."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from loradock.analysis.report.data_stats import labels_line, suspicious, table, unused_columns, whole
from loradock.data.text_statistics import TextStatistics


def text_parts(statistics: TextStatistics) -> Iterator[RenderableType]:
    """All of it, from top to bottom, for a console that reads no markup."""
    formats = ", ".join(f"{name} {rows:,}" for name, rows in statistics.formats.items())
    yield f"rows: {statistics.rows:,} read, all of them usable; formats: {formats}"
    yield from labels_line(statistics.labels)
    yield sources_table(statistics)
    yield from unused_columns(statistics.sources)
    yield amounts_table(statistics)
    yield f"\nlongest row: {statistics.longest_row} ({statistics.characters.percentiles['max']:,} characters)"
    yield from suspicious(statistics.suspicions)
    yield "rejected earlier, with exit code 65: empty answers, broken records"
    yield "\nnot counted without a tokenizer; --model DIR (config.json and a tokenizer, no weights) adds:"
    yield from (f"  - {token}" for token in statistics.tokenizer_adds)


def sources_table(statistics: TextStatistics) -> Table:
    """A line a source."""
    grid = table("\nsources", "path", "format", "rows", "weight", "characters", "words", "longest")
    for source in statistics.sources:
        grid.add_row(
            source.path,
            source.format,
            f"{source.rows:,}",
            f"{source.weight:g}",
            *whole((source.characters, source.words, source.longest)),
        )
    return grid


def amounts_table(statistics: TextStatistics) -> Table:
    """Percentiles of characters and words."""
    names = list(statistics.characters.percentiles)
    grid = table("\na row has", "", "all", "mean", *(name if name == "max" else f"{name} %" for name in names))
    lines = {
        "characters": statistics.characters,
        "characters of the answer": statistics.answer_characters,
        "words": statistics.words,
        "words of the answer": statistics.answer_words,
    }
    for name, amount in lines.items():
        grid.add_row(name, f"{amount.total:,}", f"{amount.mean:,.1f}", *whole(amount.percentiles.values()))
    return grid
