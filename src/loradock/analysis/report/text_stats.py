"""What `data stats` shows a person where no model is named: tables of characters and words, and what a model adds."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from loradock.analysis.report.data_stats import suspicious, table, unused_columns, whole
from loradock.data.text_statistics import TextStatistics


def text_parts(found: TextStatistics) -> Iterator[RenderableType]:
    """All of it, from top to bottom, for a console that reads no markup."""
    formats = ", ".join(f"{name} {rows:,}" for name, rows in found.formats.items())
    yield f"rows: {found.rows:,} read, all of them usable; formats: {formats}"
    yield sources_table(found)
    yield from unused_columns(found.sources)
    yield amounts_table(found)
    yield f"\nlongest row: {found.longest_row} ({found.characters.percentiles['max']:,} characters)"
    yield from suspicious(found.suspicions)
    yield "rejected earlier, with exit code 65: empty answers, broken records"
    yield "\nnot counted without a tokenizer; --model DIR (config.json and a tokenizer, no weights) adds:"
    yield from (f"  - {each}" for each in found.tokenizer_adds)


def sources_table(found: TextStatistics) -> Table:
    """A line a source."""
    made = table("\nsources", "path", "format", "rows", "weight", "characters", "words", "longest")
    for each in found.sources:
        made.add_row(
            each.path,
            each.format,
            f"{each.rows:,}",
            f"{each.weight:g}",
            *whole((each.characters, each.words, each.longest)),
        )
    return made


def amounts_table(found: TextStatistics) -> Table:
    """Percentiles of characters and words."""
    names = list(found.characters.percentiles)
    made = table("\na row has", "", "all", "mean", *(name if name == "max" else f"{name} %" for name in names))
    lines = {
        "characters": found.characters,
        "characters of the answer": found.answer_characters,
        "words": found.words,
        "words of the answer": found.answer_words,
    }
    for name, amount in lines.items():
        made.add_row(name, f"{amount.total:,}", f"{amount.mean:,.1f}", *whole(amount.percentiles.values()))
    return made
