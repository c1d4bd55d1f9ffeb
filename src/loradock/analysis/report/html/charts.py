"""The charts of a report: which curves of the runs' lines and samples they show, and where each point lies. Pure.

A chart is drawn in a square of SIDE x SIDE units that the page stretches to its width; what is text lies outside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loradock.analysis.report.html import series as curves
from loradock.analysis.report.html.kinds import KINDS, Curve, Kind, of_samples
from loradock.analysis.report.html.runs import Line, Run, number
from loradock.analysis.report.html.series import Look, Point, Series

SIDE = 1000
SLOTS = 8
"""Colours of the palette; a ninth curve has the first one again, with another dash."""
TABLE_ROWS = 40
UNIT_SECONDS = {"second": 1.0, "minute": 60.0}
SHORT_MINUTES = 2.0
DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with its curves, and what its axes show; `x_name` is what lies along it."""

    kind: Kind
    series: tuple[Series, ...]
    x_name: str
    x_bounds: tuple[float, float]
    y_bounds: tuple[float, float]
    smoothing: tuple[int, ...]

    @property
    def x_ticks(self) -> list[float]:
        """Round numbers along the chart; steps are whole."""
        ticks = curves.ticks(*self.x_bounds)
        return [tick for tick in ticks if tick == int(tick)] if self.x_name == "step" else ticks

    @property
    def y_ticks(self) -> list[float]:
        """Round numbers beside the chart."""
        return curves.ticks(*self.y_bounds, count=5)

    def across(self, x: float) -> float:
        """Where x lies, of SIDE from the left."""
        low, high = self.x_bounds
        return SIDE * (x - low) / (high - low)

    def down(self, y: float) -> float:
        """Where y lies, of SIDE from the top."""
        low, high = self.y_bounds
        return SIDE * (high - y) / (high - low)

    def path(self, drawn: Series) -> str:
        """The curve as an SVG path: one command a point."""
        places = [f"{self.across(x):.1f} {self.down(y):.1f}" for x, y in drawn.points]
        return "M" + "L".join(places)

    def dots(self, drawn: Series) -> str:
        """The points alone, each a line of no length with round ends."""
        return "".join(f"M{self.across(x):.1f} {self.down(y):.1f}h.01" for x, y in drawn.points)

    @property
    def description(self) -> str:
        """What a person is told who does not see it."""
        sentences = []
        for curve in self.series:
            ys = [y for _, y in curve.points]
            sentences.append(
                f"{curve.name}: {curve.total:,} value{'s' if curve.total > 1 else ''}, first {short(ys[0])}, "
                f"last {short(ys[-1])}, lowest {short(min(ys))}, highest {short(max(ys))}"
            )
        return f"Over the {self.x_name}. " + "; ".join(sentences) + "."

    @property
    def notes(self) -> list[str]:
        """What was done to the values to draw them."""
        notes: list[str] = []
        thinned = [curve for curve in self.series if len(curve.points) + curve.left_out < curve.total]
        if thinned:
            most = max(curve.total for curve in thinned)
            notes.append(
                f"Thinned out for drawing: of up to {most:,} values the first, lowest, highest and last of each of "
                f"{curves.SPANS} spans."
            )
        if self.smoothing:
            spans = sorted(set(self.smoothing))
            notes.append(f"Smoothed: exponentially weighted mean over about {', '.join(map(str, spans))} lines.")
        if left_out := sum(curve.left_out for curve in self.series):
            notes.append(f"{left_out:,} value{'s' if left_out > 1 else ''} that are no finite number are left out.")
        return notes

    @property
    def data(self) -> str:
        """The drawn points for the page's script, as JSON that can stand in HTML."""
        content: dict[str, Any] = {
            "x": {"name": self.x_name, "low": self.x_bounds[0], "high": self.x_bounds[1]},
            "y": {"unit": self.kind.unit, "low": self.y_bounds[0], "high": self.y_bounds[1]},
            "series": [
                {
                    "name": curve.name,
                    "run": curve.run,
                    "xs": [rounded(x) for x, _ in curve.points],
                    "ys": [rounded(y) for _, y in curve.points],
                }
                for curve in self.series
            ],
        }
        return as_script_text(content)

    def table(self) -> list[list[str]]:
        """Rows of a table: x, then the value of each curve there. Of a long curve some rows, evenly spread."""
        places = sorted({x for curve in self.series for x, _ in curve.points})
        if len(places) > TABLE_ROWS:
            places = [places[round(i * (len(places) - 1) / (TABLE_ROWS - 1))] for i in range(TABLE_ROWS)]
        columns = [dict(curve.points) for curve in self.series]
        return [[short(x), *(short(column[x]) if x in column else "" for column in columns)] for x in places]


def charts(runs: Sequence[Run]) -> list[Chart]:
    """The charts that there are values for."""
    sampled = of_samples(sample for run in runs for sample in run.samples)
    return [figure for kind in (*KINDS, *sampled) if (figure := chart(kind, runs))]


def chart(kind: Kind, runs: Sequence[Run]) -> Chart | None:
    """One chart over all runs; None where no run has a value for it, or nothing but zeros."""
    unit = unit_of(runs)
    drawn: list[Series] = []
    spans: list[int] = []
    for index, run in enumerate(runs):
        for position, curve in enumerate(kind.curves):
            points, left_out = points_of(run, curve, scale=kind.scale, unit=unit)
            if not points:
                continue
            name = f"{run.label}: {curve.name}" if len(runs) > 1 else curve.name
            slot = index if len(runs) > 1 else position
            span = curves.smoothing_span(len(points)) if curve.smoothing else 0
            drawn.append(
                as_series(name, points, run=index, slot=slot, look="faint" if span else curve.look, left_out=left_out)
            )
            if span:
                means = curves.smoothed((y for _, y in points), span=span)
                smooth = [(x, mean) for (x, _), mean in zip(points, means, strict=True)]
                drawn.append(as_series(f"{name}, smoothed", smooth, run=index, slot=slot, look="line"))
                spans.append(span)
    if not drawn or (kind.needs_more_than_zero and not any(y for curve in drawn for _, y in curve.points)):
        return None
    xs = [x for curve in drawn for x, _ in curve.points]
    ys = [y for curve in drawn for _, y in curve.points]
    low, high = min(xs), max(xs)
    return Chart(
        kind=kind,
        series=tuple(drawn),
        x_name=unit if all(curve.source == "samples" for curve in kind.curves) else "step",
        x_bounds=(low, high) if high > low else (low, low + 1),
        y_bounds=curves.bounds(ys, is_from_zero=kind.is_from_zero),
        smoothing=tuple(spans),
    )


def as_series(name: str, points: Sequence[Point], *, run: int, slot: int, look: Look, left_out: int = 0) -> Series:
    """A curve as it is drawn."""
    return Series(
        name=name,
        run=run,
        slot=slot,
        look=look,
        points=curves.thinned(points),
        total=len(points) + left_out,
        left_out=left_out,
    )


def unit_of(runs: Sequence[Run]) -> str:
    """What samples are drawn over: minutes, or seconds where no run has two minutes of them."""
    longest = max((x for run in runs for x in elapsed(run.samples, unit="minute") if x is not None), default=0.0)
    return "minute" if longest >= SHORT_MINUTES else "second"


def points_of(run: Run, curve: Curve, *, scale: float, unit: str) -> tuple[list[Point], int]:
    """The finite values of a curve by place, and how many others there were."""
    lines = {"train": run.train, "evaluations": run.evaluations, "samples": run.samples}[curve.source]
    if curve.source == "samples":
        placed = zip(elapsed(lines, unit=unit), lines, strict=True)
    else:
        placed = ((number(line["step"]), line) for line in lines)
    points: list[Point] = []
    left_out = 0
    for x, line in placed:
        if x is None or curve.key not in line:
            continue
        if (y := number(line[curve.key])) is None:
            left_out += line[curve.key] is not None
        else:
            points.append((x, y * scale))
    return sorted(points, key=lambda point: point[0]), left_out


def elapsed(lines: Sequence[Line], *, unit: str) -> list[float | None]:
    """Minutes or seconds since the first line, by the time of each; None for one without."""
    times: list[datetime | None] = []
    for line in lines:
        try:
            times.append(datetime.fromisoformat(line["time"]))
        except (KeyError, TypeError, ValueError):
            times.append(None)
    first = next((time for time in times if time), None)
    return [(time - first).total_seconds() / UNIT_SECONDS[unit] if time and first else None for time in times]


def rounded(value: float) -> float:
    """A number of so many digits that nobody sees the difference."""
    return float(f"{value:.{DIGITS}g}")


def short(value: float) -> str:
    """A number to read."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def as_script_text(content: Any) -> str:
    """JSON in which nothing can end or open an element, or a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
