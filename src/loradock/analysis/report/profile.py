"""What `loradock profile` shows: where a step's time goes, what computes, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from loradock.analysis.report.figures import Figures
from loradock.text.amounts import duration_text

SHOWN_OPERATORS = 10
NAME_WIDTH = 60


def tables(content: Mapping[str, Any]) -> list[tuple[str, Figures]]:
    """Headings and tables: the step, the whole run, roles, and the longest operators or kernels."""
    steps = content["steps"]
    run = content["run"]
    on_device = content["busy_share"] is not None
    step = (
        f"per step: {duration_text(content['step_seconds'])}, {content['tokens_per_second']:,.0f} real tokens/s "
        f"({steps['counted']} steps without the profiler)"
    )
    computing = (
        f"{'GPU' if on_device else 'host'} time per recorded step "
        f"({steps['recorded']} steps, {content['recorded_slowdown']:.2f} x as long as one without the profiler)"
    )
    return [
        (step, share_table(content["timeline"])),
        (
            f"whole run: {run['steps']:,} steps, about {duration_text(run['seconds'])}, not counting train's env-check",
            share_table(run["parts"]),
        ),
        (computing, share_table(content["roles"])),
        (f"longest {'kernels' if on_device else 'operators'}, per recorded step", operator_table(content)),
    ]


def share_table(rows: list[dict[str, Any]]) -> Figures:
    """Names, seconds and shares; what takes no time is left out."""
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    table.add_column()
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    for row in rows:
        if row["seconds"] > 0:
            table.add_row(row["name"], duration_text(row["seconds"]), f"{100 * row['share']:.1f} %")
    return Figures(table)


def operator_table(content: Mapping[str, Any]) -> Figures:
    """The longest by their own time."""
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    table.add_column()
    table.add_column("role", style="dim")
    table.add_column("time", justify="right")
    table.add_column("calls", justify="right")
    for operator in content["operators"][:SHOWN_OPERATORS]:
        name = Text(operator["name"])
        name.truncate(NAME_WIDTH, overflow="ellipsis")
        table.add_row(name, operator["role"], duration_text(operator["seconds"]), f"{operator['count']:,.0f} x")
    return Figures(table)


def lines(content: Mapping[str, Any]) -> list[str]:
    """The verdict, what else was found, and where the files are."""
    verdict = content["verdict"]
    busy = content["busy_share"]
    sentences = [f"the GPU is busy {100 * busy:.0f} % of a step"] if busy is not None else []
    sentences.append(verdict["sentence"])
    sentences += [f"also {sentence}" for sentence in verdict["also"]]
    if verdict["remedy"]:
        sentences.append(f"to try: {verdict['remedy']}")
    return [*sentences, *(f"{name}: {path}" for name, path in content["files"].items())]
