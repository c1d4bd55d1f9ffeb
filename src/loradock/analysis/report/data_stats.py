"""What `data stats` shows a person: tables, a histogram of lengths, and the recommendation in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.bar import Bar
from rich.console import RenderableType
from rich.padding import Padding as Indent
from rich.table import Table
from rich.text import Text

from loradock.data.lengths import Histogram, Spread
from loradock.data.pair_statistics import SourceOfPairs
from loradock.data.samples.rows import LEARNED
from loradock.data.statistics import SourceCount, Statistics
from loradock.data.suspicion import Suspicion
from loradock.data.text_statistics import TextSource
from loradock.text.amounts import percent, percent_of

BAR_COLUMNS = 40
MANY = 9
DOING = {"split": "would be cut if rows were not split", "truncate": "is cut", "drop": "is dropped"}
"""Columns of figures that need a narrow gap to fit 80."""


def parts(statistics: Statistics) -> Iterator[RenderableType]:
    """All of it, from top to bottom, for a console that reads no markup."""
    yield from head(statistics)
    yield sources_table(statistics)
    yield from unused_columns(statistics.sources)
    yield spread_table(statistics)
    yield histogram_table(statistics.histogram, marks=marks(statistics))
    yield truncation_table(statistics)
    yield from marked_lengths(statistics)
    yield padding_table(statistics)
    yield "(a micro-batch ends with its optimiser step, train.global_batch, so a pack wider than a step cannot fill)"
    yield from suspicious(statistics.suspicions)
    yield "rejected earlier, with exit code 65: empty answers, broken records, rows without supervised tokens"
    yield from advice(statistics)


def head(statistics: Statistics) -> Iterator[str]:
    """What was looked at."""
    read = f"rows: {statistics.rows:,} read, all of them usable; {statistics.train_rows:,} to train on"
    validation = f", {statistics.validation_rows:,} to validate on" if statistics.validation_rows else ""
    epoch = (
        ""
        if statistics.samples_per_epoch == statistics.train_rows
        else f"; an epoch sees {statistics.samples_per_epoch:,} samples"
    )
    yield read + validation + epoch
    reasons = {"data.min_tokens": statistics.short_rows, "data.deduplicate": statistics.duplicate_rows}
    if left_out := [f"{rows:,} ({key})" for key, rows in reasons.items() if rows]:
        yield f"left out: {', '.join(left_out)}"
    formats = ", ".join(f"{name} {rows:,}" for name, rows in statistics.formats.items())
    yield f"formats: {formats}; template {statistics.template}, loss on {statistics.loss}"
    yield from labels_line(statistics.labels)
    yield (
        f"supervised: {statistics.learned.tokens:,} of {statistics.tokens.tokens:,} tokens "
        f"({percent_of(statistics.learned.tokens, statistics.tokens.tokens)}): {LEARNED[statistics.loss]}"
    )


def labels_line(labels: Mapping[str, int]) -> Iterator[str]:
    """How many answers have which label; nothing where none is labelled."""
    if labels:
        yield f"labels: {', '.join(f'{count:,} {name}' for name, count in labels.items())}"


def table(title: str, *columns: str) -> Table:
    """A table of figures with its first column to the left; that one alone is folded where columns are few."""
    gap = 1 if len(columns) >= MANY else 2
    grid = Table(title=title, title_justify="left", box=None, padding=(0, gap, 0, 0), title_style="bold")
    for number, column in enumerate(columns):
        grid.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number > 0)
    return grid


def sources_table(statistics: Statistics) -> Table:
    """A line a source."""
    grid = table("\nsources", "path", "format", "rows", "held\nout", "weight", "tokens", "label\nshare", "longest")
    for source in statistics.sources:
        learned, longest = percent_of(source.learned_tokens, source.tokens), f"{source.longest:,}"
        counts = (f"{source.rows:,}", f"{source.held_out:,}", f"{source.weight:g}", f"{source.tokens:,}")
        grid.add_row(source.path, source.format, *counts, learned, longest)
    return grid


SHOWN_COLUMNS = 50
"""A table that is drawn costs its cells some milliseconds each."""


def unused_columns(sources: Sequence[SourceCount | TextSource | SourceOfPairs]) -> Iterator[RenderableType]:
    """A line a column that the format takes no notice of; nothing where all are used."""
    grid = table("\ncolumns not used", "column", "of", "filled", "such as")
    for index in (1, 3):
        grid.columns[index].justify, grid.columns[index].no_wrap = "left", False
    for source in sources:
        for column in source.unused_columns[:SHOWN_COLUMNS]:
            grid.add_row(column.name, source.path, percent_of(column.rows, source.rows), column.sample)
        if (more := len(source.unused_columns) - SHOWN_COLUMNS) > 0:
            grid.add_row(f"and {more:,} more", source.path, "", "(--json has all)")
    if grid.rows:
        yield grid
        yield "(data.sources.N.fields maps a column, data.sources.N.ignore leaves it out on purpose)"


def spread_table(statistics: Statistics) -> Table:
    """Percentiles of lengths."""
    names = list(statistics.tokens.percentiles)
    grid = table("\ntokens of a row", "", "all", "mean", *(name if name == "max" else f"{name} %" for name in names))
    lines: dict[str, Spread | None] = {
        "whole row": statistics.tokens,
        "not supervised (prompt, template)": statistics.context,
        "supervised": statistics.learned,
        "whole row, validation": statistics.validation,
    }
    for name, spread in lines.items():
        if spread:
            grid.add_row(name, f"{spread.tokens:,}", f"{spread.mean:,.1f}", *whole(spread.percentiles.values()))
    return grid


def marks(statistics: Statistics) -> dict[int, str]:
    """Each length that was reckoned for, with what it stands for."""
    names = {at.cut.length: names_of(at.cut.length, statistics) for at in statistics.lengths}
    return {length: f"{length} ({text})" if text else str(length) for length, text in names.items()}


def names_of(length: int, statistics: Statistics) -> str:
    """What a length stands for; empty for nothing."""
    lengths = {
        "recommended": statistics.recommendation.max_length,
        "now": statistics.max_length,
        "positions": statistics.positions,
    }
    names = [name for name, value in lengths.items() if value == length]
    if statistics.positions and length > statistics.positions:
        names.append("beyond the model's positions")
    return ", ".join(names)


def histogram_table(histogram: Histogram, *, marks: Mapping[int, str]) -> Table:
    """Rows by length as bars, with the running share, and the lengths that fall into a bin beside it."""
    grid = table("\nrows by length", "tokens", "rows", "up to here", "")
    grid.columns[3].justify, grid.columns[3].no_wrap = "left", False
    grid.columns[0].no_wrap = True
    grid.add_column()
    tallest, all_rows, so_far = max(histogram.rows), sum(histogram.rows), 0
    for first, edge, rows in zip(histogram.edges, histogram.edges[1:], histogram.rows, strict=False):
        so_far += rows
        inside = ", ".join(text for length, text in sorted(marks.items()) if first <= length < edge)
        bar = Bar(size=tallest, begin=0, end=rows, width=BAR_COLUMNS, color="cyan")
        grid.add_row(f"{first:,}-{edge - 1:,}", f"{rows:,}", percent_of(so_far, all_rows), bar, inside)
    return grid


def truncation_table(statistics: Statistics) -> Table:
    """A line a length: what is lost, and the work of an epoch beside the recommended length's, packed."""
    choice = next(at for at in statistics.lengths if at.cut.length == statistics.recommendation.max_length)
    grid = table(
        f"\nwhat {DOING[statistics.long_rows]}, by length (data.long_rows={statistics.long_rows}); "
        "arithmetic of an epoch",
        "length",
        "rows\nwhole",
        "cut",
        "dropped",
        "answer\nlost",
        "tokens\nlost",
        "labels\nlost",
        "packed",
        f"padded,\n{choice.padded_micro_batch}",
    )
    grid.columns[0].no_wrap = True
    for at in statistics.lengths:
        cut = at.cut
        work = (at.packed.total / choice.packed.total, at.padded.total / choice.packed.total)
        grid.add_row(
            f"{cut.length:,}",
            percent_of(cut.rows_whole, statistics.train_rows),
            *whole((cut.rows_cut, cut.rows_dropped, cut.answers_lost)),
            percent_of(cut.tokens_lost, statistics.tokens.tokens),
            percent_of(cut.learned_tokens_lost, statistics.learned.tokens),
            *(f"x{cell:.2f}" for cell in work),
        )
    return grid


def marked_lengths(statistics: Statistics) -> Iterator[str]:
    """What the lengths of the table stand for, a line each."""
    for at in statistics.lengths:
        if names := names_of(at.cut.length, statistics):
            yield f"({at.cut.length:,}: {names})"


def padding_table(statistics: Statistics) -> Table:
    """Padding without packing and the filling of packs, by micro-batch."""
    sizes = [padding.micro_batch for padding in statistics.lengths[0].paddings]
    grid = table(
        "\npadding: share of positions, rows to the length or to the longest of N; packs: share filled of N x length",
        "length",
        "to\nlength",
        *(f"pad\n{size}" for size in sizes),
        *(f"pack\n{size}" for size in sizes),
    )
    grid.columns[0].no_wrap = True
    for at in statistics.lengths:
        shares = [
            *(padding.padding_share for padding in at.paddings),
            *(padding.packed_fill for padding in at.paddings),
        ]
        grid.add_row(f"{at.cut.length:,}", *map(percent, (at.full_padding_share, *shares)))
    return grid


def suspicious(suspicions: Sequence[Suspicion]) -> Iterator[RenderableType]:
    """A line a kind of row that deserves a look, with the first places below it."""
    grid = table("\nsuspicious rows", "", "rows", "reason, and the first rows")
    grid.columns[0].no_wrap = True
    grid.columns[2].justify, grid.columns[2].no_wrap = "left", False
    for suspicion in suspicions:
        if suspicion.rows:
            grid.add_row(suspicion.name, f"{suspicion.rows:,}", "\n  ".join((suspicion.what, *suspicion.places)))
    none = ", ".join(suspicion.name for suspicion in suspicions if not suspicion.rows)
    if any(suspicion.rows for suspicion in suspicions):
        yield grid
    yield f"\nchecked and not found: {none}" if none else ""


def advice(statistics: Statistics) -> Iterator[RenderableType]:
    """The recommended length, its trade-off, and what to type."""
    recommendation = statistics.recommendation
    yield Text(f"\nrecommended: --set {recommendation.setting}", style="bold")
    if statistics.long_rows == "split":
        yield "(rows over a length are split: what is said to be lost is learned in windows of its own)"
    yield Indent(f"because: {recommendation.rule}", (0, 0, 0, 2), expand=False)
    for reason in recommendation.reasons:
        yield Indent(reason, (0, 0, 0, 2), expand=False)
    if recommendation.max_length == statistics.max_length:
        yield Indent("this is the current max_length", (0, 0, 0, 2), expand=False)


def whole(numbers: Iterable[int]) -> list[str]:
    """Counts as a person reads them."""
    return [f"{number:,}" for number in numbers]
