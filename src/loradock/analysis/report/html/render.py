"""The page: everything that it shows in one HTML file, with a policy under which a browser asks nobody for more."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from loradock import __version__
from loradock.analysis.report.html import bars, environment, sections
from loradock.analysis.report.html.bars import Bar
from loradock.analysis.report.html.charts import SIDE, SLOTS, charts, short
from loradock.analysis.report.html.differences import Outcome, differences, outcomes
from loradock.analysis.report.html.environment import Note, Rows
from loradock.analysis.report.html.runs import Run

TITLE_RUNS = 3


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is told of one run."""

    label: str
    directory: str
    standing: str
    is_bad: bool
    alerts: list[Note]
    summary: Rows
    notes: tuple[str, ...]
    interruptions: list[str]
    decisions: list[tuple[str, str, str]]
    memory: list[Bar]
    checkpoints: list[tuple[str, str, str, str]]
    environment: Rows
    proof: str
    findings: list[Note]
    packages: Rows
    config: list[tuple[str, str, str]]


def html(runs: Sequence[Run], *, live_version: str | None = None) -> str:
    """The report of these runs; with `live_version` (that of their files) it asks its server for a newer one."""
    scripts = ["charts.js", *(["watch.js"] if live_version is not None else [])]
    script, style = "".join(asset(name) for name in scripts), asset("style.css")
    labels = [run.label for run in runs]
    drawn, parts = charts(runs), [page(run) for run in runs]
    step_bars, stage_bars = bars.phases(runs), bars.stages(runs)
    return template().render(
        title=title(labels),
        labels=labels,
        pages=parts,
        charts=drawn,
        phases=step_bars,
        stages=stage_bars,
        outcomes=[outcome_row(outcome) for outcome in outcomes(runs)],
        differences=[(difference.name, difference.group, *difference.values) for difference in differences(runs)],
        contents=contents(parts, has_bars=bool(step_bars or stage_bars)),
        is_live=live_version is not None,
        version=live_version,
        policy=policy(script, style, is_live=live_version is not None),
        style=style,
        script=script,
        loradock=__version__,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        side=SIDE,
        slots=SLOTS,
    )


def page(run: Run) -> Page:
    """One run in words."""
    proof, results = environment.findings(run)
    return Page(
        label=run.label,
        directory=str(run.directory),
        standing=sections.standing(run),
        is_bad=sections.is_bad(run),
        alerts=sections.alerts(run),
        summary=sections.summary(run),
        notes=run.notes,
        interruptions=sections.interruptions(run),
        decisions=sections.decisions(run),
        memory=bars.memory(run),
        checkpoints=sections.checkpoints(run),
        environment=environment.environment(run),
        proof=proof,
        findings=results,
        packages=environment.packages(run),
        config=sections.config(run),
    )


def title(labels: Sequence[str]) -> str:
    """The name of a run, or of some of those that are compared."""
    surplus = len(labels) - TITLE_RUNS
    more = f" and {surplus} more" if surplus > 0 else ""
    return " vs ".join(labels[:TITLE_RUNS]) + more


def outcome_row(outcome: Outcome) -> tuple[str, ...]:
    """A row of the table: each value, with its ratio where there is one."""
    if not outcome.ratios:
        return (outcome.name, *outcome.values)
    pairs = zip(outcome.values, outcome.ratios, strict=True)
    return (
        outcome.name,
        *(f"{value} ({ratio})" if position else value for position, (value, ratio) in enumerate(pairs)),
    )


def contents(pages: Sequence[Page], *, has_bars: bool) -> list[tuple[str, str]]:
    """The links at the top: id and text."""
    time = [("time", "Time")] if has_bars else []
    if len(pages) > 1:
        runs = [(f"run-{position}", entry.label) for position, entry in enumerate(pages, start=1)]
        return [("outcomes", "What it did"), ("differences", "What differed"), ("curves", "Curves"), *time, *runs]
    plan = [("plan", "Plan")] if pages[0].decisions else []
    chapters = [("environment", "Environment"), ("config", "Configuration")]
    return [("summary", "Summary"), ("curves", "Curves"), *time, *plan, *chapters]


def policy(script: str, style: str, *, is_live: bool) -> str:
    """The Content-Security-Policy: this script and this style run, and nothing is fetched, sent, framed or submitted.

    A live page may ask its own server.
    """
    parts = [
        "default-src 'none'",
        f"script-src '{digest(script)}'",
        f"style-src '{digest(style)}'",
        *(["connect-src 'self'"] if is_live else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)


def digest(text: str) -> str:
    """The hash by which a policy knows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def asset(name: str) -> str:
    """A file of this folder."""
    return files("loradock.analysis.report.html").joinpath(name).read_text(encoding="utf-8")


@cache
def template() -> Any:
    """The page's template; whatever it is given is escaped, but our own script, style and JSON."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["short"] = short
    return environment.from_string(asset("template.html.jinja"))
