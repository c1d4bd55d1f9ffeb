"""Statistics of preference pairs for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from loradock.analysis.report.data_stats import table, unused_columns, whole
from loradock.data.preferences.statistics import PairStatistics
from loradock.text.amounts import percent, percent_of

BIASED_SHARE = 0.6
"""Of pairs whose chosen answer is the longer one: from here on it is named as a bias."""


def pair_parts(statistics: PairStatistics) -> Iterator[RenderableType]:
    """Everything, in the order in which it is read."""
    held_out = f", {statistics.validation_pairs:,} to validate on" if statistics.validation_pairs else ""
    yield f"preference pairs: {statistics.pairs:,} to train on{held_out}; template {statistics.template}"
    grid = table("\nsources", "path", "format", "pairs", "weight")
    for source in statistics.sources:
        grid.add_row(source.path, source.format, f"{source.rows:,}", f"{source.weight:g}")
    yield grid
    yield from unused_columns(statistics.sources)
    names = list(statistics.document.percentiles)
    grid = table("\ntokens", "", "all", "mean", *(name if name == "max" else f"{name} %" for name in names))
    for name in ("prompt", "chosen", "rejected", "document"):
        spread = getattr(statistics, name)
        title = {"document": "an answer with its prompt"}.get(name, name)
        grid.add_row(title, f"{spread.tokens:,}", f"{spread.mean:,.1f}", *whole(spread.percentiles.values()))
    yield grid
    shares = percent(statistics.longer_chosen_share), percent(statistics.longer_rejected_share)
    excess = f"chosen - rejected: {statistics.mean_excess:+.1f} tokens in the mean"
    yield f"\nlength: the chosen answer is longer in {shares[0]}, the rejected one in {shares[1]}; {excess}"
    if statistics.longer_chosen_share >= BIASED_SHARE:
        yield "warning: chosen answers are mostly the longer ones: longer answers are learned from that alone"
    if statistics.equal:
        yield f"{statistics.equal:,} pairs of two equal answers are left out: there is nothing to prefer"
    grid = table("\nby data.max_length", "tokens", "kept", "left out", "")
    for at in statistics.lengths:
        name = "now" if at.length == statistics.max_length else ""
        share = percent_of(at.kept, at.kept + at.over_long)
        grid.add_row(f"{at.length:,}", f"{at.kept:,} ({share})", f"{at.over_long:,}", name)
    yield grid
    yield "(data.long_rows=truncate cuts the ends of long answers instead)"
