"""What `loradock evaluate` prints of answers: a table of scores, one of differences, and what they cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.text.amounts import percent
from loradock.use.evaluation.summary import SHARES

if TYPE_CHECKING:
    from rich.console import Console

    from loradock.use.evaluation.evaluate import Report, Result
    from loradock.use.evaluation.intervals import Difference
    from loradock.use.evaluation.summary import Score, Summary

UNKNOWN = ""


def show(report: Report, screen: Console, *, file: Path) -> None:
    """Everything, from the scores to where they are kept."""
    protocol, model = report.settings["protocol"], report.model
    screen.print(f"{model.name}, protocol {protocol}, {model.dtype} on {model.device}")
    for metric in dict.fromkeys(result.summary.metric for result in report.results):
        of_metric = [result for result in report.results if result.summary.metric == metric]
        screen.print(_scores(metric, of_metric))
    for line in (*_contaminated(report.results), *_visible(report.results)):
        screen.print(line)
    if report.other:
        screen.print(f"\nagainst {report.other.name}")
        screen.print(_differences(report))
    screen.print(f"\n{file}")


def figures(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A line a row, its name first. Columns that are empty in each row are left out."""
    from rich.table import Table

    from loradock.analysis.report.figures import Figures

    table = Table(box=None, pad_edge=False)
    columns = [place for place, _ in enumerate(names) if place == 0 or any(row[place] for row in rows)]
    for place in columns:
        table.add_column(names[place], justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(row[place] for place in columns))
    return Figures(table)


def _scores(metric: str, results: Sequence[Result]) -> Any:
    names = (
        "task",
        "rows",
        metric,
        "95 % interval",
        "chance",
        "majority",
        "per character",
        "unanswered",
        "by name",
        "95 % interval (name)",
        "no call",
        "unreadable",
        "ended by EOS",
    )
    return figures((*names, "perplexity", "rows/s"), [_line(metric, result) for result in results])


def _line(metric: str, result: Result) -> list[str]:
    summary, pace = result.summary, result.scored.rows_per_second
    return [
        result.wanted.items.name,
        f"{summary.score.rows:,}",
        shown(metric, summary.score.value),
        interval(metric, summary.score),
        percent_or_none(summary.chance),
        f"{percent_or_none(summary.majority)} ({summary.majority_answer})" if summary.majority is not None else UNKNOWN,
        percent_or_none(summary.normalised),
        percent_or_none(summary.unanswered),
        percent_or_none(summary.names and summary.names.value),
        interval(metric, summary.names) if summary.names else UNKNOWN,
        percent_or_none(summary.uncalled),
        percent_or_none(summary.unread),
        percent_or_none(summary.stopped),
        f"{summary.perplexity:.3f}" if summary.perplexity is not None else UNKNOWN,
        f"{pace:.1f}" if pace else UNKNOWN,
    ]


def shown(metric: str, value: float) -> str:
    """A score: percent, or a loss in nats."""
    return f"{value:.4f}" if metric == "loss" else percent(value, digits=1)


def percent_or_none(share: float | None) -> str:
    """A share with one digit; empty where there is none."""
    return UNKNOWN if share is None else percent(share, digits=1)


def interval(metric: str, score: Score) -> str:
    """Its two ends."""
    return f"{shown(metric, score.low)} to {shown(metric, score.high)}"


def _contaminated(results: Sequence[Result]) -> Iterator[str]:
    looked = [result for result in results if result.contamination]
    if not looked:
        yield "contamination: not looked for; --training-data FILE names the rows that were trained on"
    for score in looked:
        contamination, name = score.contamination, score.wanted.items.name
        assert contamination
        if not contamination.rows:
            yield f"contamination: {name}: no row stands in {contamination.trained:,} texts of the training files"
            continue
        text = (
            f"{len(contamination.questions)} rows with their whole question "
            f"and {len(contamination.stems)} with its stem"
        )
        remainder = (
            f"; without them {_clean(score.summary, score.clean)}" if score.clean else "; no row is left without them"
        )
        yield f"contamination: {name}: {text} stand in {contamination.trained:,} texts of the training files{remainder}"


def _clean(summary: Summary, score: Score) -> str:
    return f"{shown(summary.metric, score.value)} ({interval(summary.metric, score)}) of {score.rows:,} rows"


def _visible(results: Sequence[Result]) -> Iterator[str]:
    texts: list[str] = []
    for result in results:
        smallest = result.summary.detectable
        if result.summary.metric in SHARES:
            rows = f"{result.summary.score.rows:,} rows are too few"
            said = f"none ({rows})" if smallest is None else f"{100 * smallest:.1f} points"
            texts.append(f"{result.wanted.items.name} {said}")
    if texts:
        yield f"smallest detectable difference (10 % disagreement, 80 % power): {', '.join(texts)}"


def _differences(report: Report) -> Any:
    names = (
        "task",
        "difference",
        "95 % interval",
        "only this right",
        "only other right",
        "p",
        "p (Holm)",
        "detectable",
    )
    metrics = {result.wanted.items.name: result.summary.metric for result in report.results}
    lines: list[list[str]] = []
    for name, comparison in report.comparisons.items():
        metric = metrics[name]
        smallest = "none" if comparison.disagreement else UNKNOWN
        if comparison.detectable is not None:
            smallest = f"{100 * comparison.detectable:.1f} points"
        lines.append([name, *_paired(metric, comparison.difference), f"{comparison.p_holm:.3g}", smallest])
        if comparison.names:
            lines.append([f"{name}, by name", *_paired(metric, comparison.names), UNKNOWN, UNKNOWN])
    return figures(names, lines)


def _paired(metric: str, paired: Difference) -> list[str]:
    return [
        signed(metric, paired.difference),
        f"{signed(metric, paired.low)} to {signed(metric, paired.high)}",
        UNKNOWN if paired.own_only is None else f"{paired.own_only:,}",
        UNKNOWN if paired.other_only is None else f"{paired.other_only:,}",
        f"{paired.p:.3g}",
    ]


def signed(metric: str, value: float) -> str:
    """A difference: percentage points, or nats."""
    return f"{value:+.4f}" if metric == "loss" else f"{100 * value:+.1f}"
