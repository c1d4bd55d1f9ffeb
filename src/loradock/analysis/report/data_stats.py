"""What `data stats` shows a person: tables, a histogram of lengths, and the recommendation in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.bar import Bar
from rich.console import RenderableType
from rich.padding import Padding as Indent
from rich.table import Table
from rich.text import Text

from loradock.data.lengths import Histogram, Spread
from loradock.data.samples.rows import LEARNED
from loradock.data.statistics import SourceCount, Statistics
from loradock.data.suspicion import Suspicion
from loradock.data.text_statistics import TextSource
from loradock.text.amounts import percent, percent_of

BAR_COLUMNS = 40
MANY = 9
DOING = {"split": "would be cut if rows were not split", "truncate": "is cut", "drop": "is dropped"}
"""Columns of figures that need a narrow gap to fit 80."""


def parts(found: Statistics) -> Iterator[RenderableType]:
    """All of it, from top to bottom, for a console that reads no markup."""
    yield from head(found)
    yield sources_table(found)
    yield from unused_columns(found.sources)
    yield spread_table(found)
    yield histogram_table(found.histogram, marks=marks(found))
    yield truncation_table(found)
    yield from marked_lengths(found)
    yield padding_table(found)
    yield "(a micro-batch ends with its optimiser step, train.global_batch, so a pack wider than a step cannot fill)"
    yield from suspicious(found.suspicions)
    yield "rejected earlier, with exit code 65: empty answers, broken records, rows without supervised tokens"
    yield from advice(found)


def head(found: Statistics) -> Iterator[str]:
    """What was looked at."""
    read = f"rows: {found.rows:,} read, all of them usable; {found.train_rows:,} to train on"
    held = f", {found.validation_rows:,} to validate on" if found.validation_rows else ""
    each = "" if found.samples_per_epoch == found.train_rows else f"; an epoch sees {found.samples_per_epoch:,} samples"
    yield read + held + each
    formats = ", ".join(f"{name} {rows:,}" for name, rows in found.formats.items())
    yield f"formats: {formats}; template {found.template}, loss on {found.loss}"
    yield (
        f"supervised: {found.learned.tokens:,} of {found.tokens.tokens:,} tokens "
        f"({percent_of(found.learned.tokens, found.tokens.tokens)}): {LEARNED[found.loss]}"
    )


def table(title: str, *columns: str) -> Table:
    """A table of figures with its first column to the left; that one alone is folded where columns are few."""
    gap = 1 if len(columns) >= MANY else 2
    made = Table(title=title, title_justify="left", box=None, padding=(0, gap, 0, 0), title_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number > 0)
    return made


def sources_table(found: Statistics) -> Table:
    """A line a source."""
    made = table("\nsources", "path", "format", "rows", "held\nout", "weight", "tokens", "label\nshare", "longest")
    for each in found.sources:
        learned, longest = percent_of(each.learned_tokens, each.tokens), f"{each.longest:,}"
        counts = (f"{each.rows:,}", f"{each.held_out:,}", f"{each.weight:g}", f"{each.tokens:,}")
        made.add_row(each.path, each.format, *counts, learned, longest)
    return made


SHOWN_COLUMNS = 50
"""A table that is drawn costs its cells some milliseconds each."""


def unused_columns(sources: Sequence[SourceCount | TextSource]) -> Iterator[RenderableType]:
    """A line a column that the format takes no notice of; nothing where all are used."""
    made = table("\ncolumns not used", "column", "of", "filled", "such as")
    for index in (1, 3):
        made.columns[index].justify, made.columns[index].no_wrap = "left", False
    for each in sources:
        for column in each.unused_columns[:SHOWN_COLUMNS]:
            made.add_row(column.name, each.path, percent_of(column.rows, each.rows), column.sample)
        if (more := len(each.unused_columns) - SHOWN_COLUMNS) > 0:
            made.add_row(f"and {more:,} more", each.path, "", "(--json has all)")
    if made.rows:
        yield made
        yield "(data.sources.N.fields maps a column, data.sources.N.ignore leaves it out on purpose)"


def spread_table(found: Statistics) -> Table:
    """Percentiles of lengths."""
    names = list(found.tokens.percentiles)
    made = table("\ntokens of a row", "", "all", "mean", *(name if name == "max" else f"{name} %" for name in names))
    lines: dict[str, Spread | None] = {
        "whole row": found.tokens,
        "not supervised (prompt, template)": found.context,
        "supervised": found.learned,
        "whole row, validation": found.validation,
    }
    for name, spread in lines.items():
        if spread:
            made.add_row(name, f"{spread.tokens:,}", f"{spread.mean:,.1f}", *whole(spread.percentiles.values()))
    return made


def marks(found: Statistics) -> dict[int, str]:
    """Each length that was reckoned for, with what it stands for."""
    names = {at.cut.length: names_of(at.cut.length, found) for at in found.lengths}
    return {length: f"{length} ({text})" if text else str(length) for length, text in names.items()}


def names_of(length: int, found: Statistics) -> str:
    """What a length stands for; empty for nothing."""
    lengths = {"recommended": found.recommendation.max_length, "now": found.max_length, "positions": found.positions}
    names = [name for name, value in lengths.items() if value == length]
    if found.positions and length > found.positions:
        names.append("beyond the model's positions")
    return ", ".join(names)


def histogram_table(found: Histogram, *, marks: Mapping[int, str]) -> Table:
    """Rows by length as bars, with the running share, and the lengths that fall into a bin beside it."""
    made = table("\nrows by length", "tokens", "rows", "up to here", "")
    made.columns[3].justify, made.columns[3].no_wrap = "left", False
    made.columns[0].no_wrap = True
    made.add_column()
    tallest, all_rows, so_far = max(found.rows), sum(found.rows), 0
    for first, after, rows in zip(found.edges, found.edges[1:], found.rows, strict=False):
        so_far += rows
        inside = ", ".join(text for length, text in sorted(marks.items()) if first <= length < after)
        bar = Bar(size=tallest, begin=0, end=rows, width=BAR_COLUMNS, color="cyan")
        made.add_row(f"{first:,}-{after - 1:,}", f"{rows:,}", percent_of(so_far, all_rows), bar, inside)
    return made


def truncation_table(found: Statistics) -> Table:
    """A line a length: what is lost, and the work of an epoch beside the recommended length's, packed."""
    taken = next(at for at in found.lengths if at.cut.length == found.recommendation.max_length)
    made = table(
        f"\nwhat {DOING[found.long_rows]}, by length (data.long_rows={found.long_rows}); arithmetic of an epoch",
        "length",
        "rows\nwhole",
        "cut",
        "dropped",
        "answer\nlost",
        "tokens\nlost",
        "labels\nlost",
        "packed",
        f"padded,\n{taken.padded_micro_batch}",
    )
    made.columns[0].no_wrap = True
    for at in found.lengths:
        cut = at.cut
        work = (at.packed.total / taken.packed.total, at.padded.total / taken.packed.total)
        made.add_row(
            f"{cut.length:,}",
            percent_of(cut.rows_whole, found.train_rows),
            *whole((cut.rows_cut, cut.rows_dropped, cut.answers_lost)),
            percent_of(cut.tokens_lost, found.tokens.tokens),
            percent_of(cut.learned_tokens_lost, found.learned.tokens),
            *(f"x{each:.2f}" for each in work),
        )
    return made


def marked_lengths(found: Statistics) -> Iterator[str]:
    """What the lengths of the table stand for, a line each."""
    for at in found.lengths:
        if names := names_of(at.cut.length, found):
            yield f"({at.cut.length:,}: {names})"


def padding_table(found: Statistics) -> Table:
    """Padding without packing and the filling of packs, by micro-batch."""
    sizes = [padding.micro_batch for padding in found.lengths[0].paddings]
    made = table(
        "\npadding: share of positions, rows to the length or to the longest of N; packs: share filled of N x length",
        "length",
        "to\nlength",
        *(f"pad\n{size}" for size in sizes),
        *(f"pack\n{size}" for size in sizes),
    )
    made.columns[0].no_wrap = True
    for at in found.lengths:
        shares = [
            *(padding.padding_share for padding in at.paddings),
            *(padding.packed_fill for padding in at.paddings),
        ]
        made.add_row(f"{at.cut.length:,}", *map(percent, (at.full_padding_share, *shares)))
    return made


def suspicious(found: Sequence[Suspicion]) -> Iterator[RenderableType]:
    """A line a kind of row that deserves a look, with the first places below it."""
    made = table("\nsuspicious rows", "", "rows", "reason, and the first rows")
    made.columns[0].no_wrap = True
    made.columns[2].justify, made.columns[2].no_wrap = "left", False
    for each in found:
        if each.rows:
            made.add_row(each.name, f"{each.rows:,}", "\n  ".join((each.what, *each.places)))
    none = ", ".join(each.name for each in found if not each.rows)
    if any(each.rows for each in found):
        yield made
    yield f"\nchecked and not found: {none}" if none else ""


def advice(found: Statistics) -> Iterator[RenderableType]:
    """The recommended length, its trade-off, and what to type."""
    taken = found.recommendation
    yield Text(f"\nrecommended: --set {taken.setting}", style="bold")
    if found.long_rows == "split":
        yield "(rows over a length are split: what is said to be lost is learned in windows of its own)"
    yield Indent(f"because: {taken.rule}", (0, 0, 0, 2), expand=False)
    for reason in taken.reasons:
        yield Indent(reason, (0, 0, 0, 2), expand=False)
    if taken.max_length == found.max_length:
        yield Indent("this is the current max_length", (0, 0, 0, 2), expand=False)


def whole(numbers: Iterable[int]) -> list[str]:
    """Counts as a person reads them."""
    return [f"{number:,}" for number in numbers]
