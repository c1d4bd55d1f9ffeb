"""The lengths of a data set's rows as a PNG: how many rows, what share is covered, and where the limits lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

BARS, CURVE_POINTS = 64, 1024
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"
"""Of the palette of Okabe and Ito, which is told apart with every kind of colour vision."""
LOG_SPAN = 32
"""Where the longest row has this many times the tokens of the shortest, the axis counts in powers of two."""


def draw(lengths: np.ndarray[Any, Any], *, marks: Mapping[int, str], title: str, file: Path) -> None:
    """Draw the histogram of `lengths` (tokens, [rows]) into `file`.

    A curve tells the share of rows that are no longer than a length, another the share of all tokens that lie inside
    it. `marks`: length -> what stands at its line; one beyond the longest row is left out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter, ScalarFormatter

    ordered = np.sort(lengths).astype(np.int64)
    is_log = ordered[-1] >= LOG_SPAN * ordered[0]
    span = {"shortest": int(ordered[0]), "longest": int(ordered[-1]), "is_log": bool(is_log)}
    edges, at = bars(**span, count=BARS), bars(**span, count=CURVE_POINTS)
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.add_subplot()
    rows.hist(ordered, bins=edges.tolist(), color=BLUE, alpha=0.55, label="rows")
    rows.set_xlabel("length of a row (tokens)")
    rows.set_ylabel("rows", color=BLUE)
    rows.set_title(title, loc="left")
    shares = rows.twinx()
    covered, inside = cumulative(ordered, at)
    shares.plot(at, covered, color=VERMILION, linewidth=1.8, label="rows no longer than this")
    shares.plot(at, inside, color=GREEN, linewidth=1.8, linestyle="--", label="tokens inside this length")
    shares.set_ylim(0, 1.02)
    shares.set_ylabel("share of all")
    shares.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    for length, text in sorted(marks.items()):
        if length <= edges[-1]:
            rows.axvline(length, color="black", linewidth=1, linestyle=":")
            place, paper = rows.get_xaxis_transform(), {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            rows.text(length, 0.5, text, transform=place, rotation=90, va="center", ha="center", fontsize=8, bbox=paper)
    if is_log:
        rows.set_xscale("log", base=2)
        rows.xaxis.set_major_formatter(ScalarFormatter())
    handles = [*rows.get_legend_handles_labels()[0], *shares.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, format="png")


def bars(*, shortest: int, longest: int, is_log: bool, count: int) -> np.ndarray[Any, Any]:
    """Edges of at most `count` bars: whole tokens, evenly wide on their axis, the longest row in the last one."""
    if is_log:
        return np.unique(np.geomspace(shortest, longest + 1, count + 1).round())
    width = max(1, -(-(longest + 1 - shortest) // count))
    return np.arange(shortest, longest + 1 + width, width, dtype=np.float64)


def cumulative(ordered: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Shares of rows no longer than each edge, and of tokens inside it; `ordered` int64, ascending."""
    within = np.searchsorted(ordered, edges, side="right")
    tokens = np.concatenate([[0], np.cumsum(ordered)])
    inside = tokens[within] + (len(ordered) - within) * edges
    return within / len(ordered), inside / tokens[-1]
