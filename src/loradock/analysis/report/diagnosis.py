"""What `diagnose` shows a person: the table of the trials, the bottleneck, and the line that applies the remedy.

Made from the document that `--json` prints, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from loradock.text.amounts import duration_text, percent, size_text

NOTHING = "-"
LOUD_SPREAD = 0.15
"""Of the baseline from round to round: a machine on which only large differences can be seen."""
GAP = 2
TEXTS = ("configuration", "conclusion")
ALWAYS = ("configuration", "speed-up (95 %)", "conclusion")
BY_RANK = (
    "there", "tokens/s", "cost saved", "memory", "saves", "step", "samples/s", "expected", "rounds", "busy",
)  # fmt: skip
"""The other columns, what a narrow terminal shows first."""
FOLDED_WIDTH = 60
"""Characters that the texts together are left with before a further column is shown."""
NARROWEST = 12


def trials_table(content: Mapping[str, Any], *, columns: int) -> Table:
    """A line a configuration, at most `columns` wide. Figures that nothing fills are left out, and those without space.

    Configuration, speed-up and conclusion are always whole: the texts fold.
    """
    told = filled(content["rows"])
    names = [name for name in told if name in shown_at(told, columns=columns)]
    widths = text_widths(told, names, columns=columns)
    table = Table(title="trials", title_justify="left", title_style="bold", box=None, padding=(0, GAP, 0, 0))
    for name in names:
        width = widths.get(name)
        table.add_column(name, justify="left" if width else "right", overflow="fold", width=width, no_wrap=not width)
    for cells in zip(*(told[name] for name in names), strict=True):
        table.add_row(*map(Text, cells))
    return table


def left_out_line(content: Mapping[str, Any], *, columns: int) -> str:
    """What the table has no space for; empty where it shows all."""
    cells = filled(content["rows"])
    names = [name for name in cells if name not in shown_at(cells, columns=columns)]
    return f"not shown in {columns} columns: {', '.join(names)} (--json has all)" if names else ""


def filled(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The cells of every column that has one which says something; those that are always shown too."""
    columns = {
        "configuration": [row["title"] for row in rows],
        "samples/s": [figure(row, "samples_per_second") for row in rows],
        "tokens/s": [figure(row, "tokens_per_second", digits=0) for row in rows],
        "speed-up (95 %)": [speed_up(row) for row in rows],
        "rounds": [str(row.get("rounds", NOTHING)) for row in rows],
        "memory": [size_text(row["memory_bytes"]) if "memory_bytes" in row else NOTHING for row in rows],
        "step": [f"{1000 * row['step_seconds']:.1f} ms" if "step_seconds" in row else NOTHING for row in rows],
        "busy": [share(row.get("busy_share")) for row in rows],
        "expected": [f"{row['expected']:.2f}x" if row.get("expected") else NOTHING for row in rows],
        "there": [row.get("published") or NOTHING for row in rows],
        "saves": [duration(row.get("seconds_saved")) for row in rows],
        "cost saved": [figure(row, "cost_saved") for row in rows],
        "conclusion": [row.get("conclusion", NOTHING) for row in rows],
    }
    return {name: cells for name, cells in columns.items() if name in ALWAYS or any(cell != NOTHING for cell in cells)}


def shown_at(cells: Mapping[str, Sequence[str]], *, columns: int) -> set[str]:
    """The columns that fit: those that are always shown, then by rank as long as the texts keep their room."""
    room = columns - sum(natural(cells, name) + GAP for name in ALWAYS if name not in TEXTS) - GAP * len(TEXTS)
    texts = min(FOLDED_WIDTH, sum(natural(cells, name) for name in TEXTS))
    visible: set[str] = set(ALWAYS)
    for name in (name for name in BY_RANK if name in cells):
        if room - natural(cells, name) - GAP >= texts:
            room -= natural(cells, name) + GAP
            visible.add(name)
    return visible


def text_widths(cells: Mapping[str, Sequence[str]], names: Sequence[str], *, columns: int) -> dict[str, int]:
    """How wide each text may be: what the figures leave, by how much each has to say."""
    room = columns - sum(natural(cells, name) + GAP for name in names if name not in TEXTS) - GAP * len(TEXTS)
    first, second = (natural(cells, name) for name in TEXTS)
    if first + second <= room:
        return dict(zip(TEXTS, (first, second), strict=True))
    room = max(2 * NARROWEST, room)
    wide = min(max(round(room * first / (first + second)), NARROWEST), room - NARROWEST)
    return dict(zip(TEXTS, (wide, room - wide), strict=True))


def natural(columns: Mapping[str, Sequence[str]], name: str) -> int:
    """Characters of the widest cell or the heading."""
    return max(len(name), *map(len, columns[name]))


def phases_line(content: Mapping[str, Any]) -> str:
    """Where the time of the baseline's steps goes."""
    shares = sorted(content["phases"].items(), key=lambda phase: -phase[1])
    loud = [f"{phase} {100 * value:.0f} %" for phase, value in shares if value >= 0.005]
    padding = content["padding_share"]
    return f"a step: {', '.join(loud)}" + (f"; {100 * padding:.0f} % of the tokens are padding" if padding else "")


def verdict_lines(content: Mapping[str, Any], *, command: str | None) -> Iterator[str]:
    """The bottleneck with its evidence, what else there is, and how to apply the remedy: the `command` to type."""
    sentences = [bottleneck["sentence"] for bottleneck in content["bottlenecks"][1:]]
    yield f"{'bottleneck: ' if content['bottlenecks'] else ''}{content['summary']}"
    for sentence in sentences:
        yield f"also: {sentence}"
    patch = content["patch"]
    if patch:
        saved = duration(patch["seconds_saved"])
        total = duration(content["run"]["seconds"])
        yield f"remedy: {', '.join(patch['settings'])}: {speed_up(patch)} faster, {saved} of {total} saved on this run"
        if patch.get("cost_saved") is not None:
            yield f"cost saved: {patch['cost_saved']:.2f} of {content['run']['cost']:.2f}"
        if command:
            yield f"  {command}"
    elif content["bottlenecks"]:
        yield "remedy: none among the trials without a price"
    if (content["spread"] or 0.0) > LOUD_SPREAD:
        yield (
            f"noise: the baseline varied by about {100 * content['spread']:.0f} % between rounds: "
            "something else uses this machine; speeds in different rows come from different rounds, "
            "speed-ups from the same round; use an idle machine, a larger --budget or more --steps"
        )
    if not content["is_complete"]:
        yield "some trials are undecided: the budget was spent, or a signal arrived"


def speed_up(row: Mapping[str, Any]) -> str:
    """With its interval, where there is one."""
    if "speed_up" not in row:
        return NOTHING
    if row["low"] is None:
        return f"{row['speed_up']:.2f}x"
    return f"{row['speed_up']:.2f}x ({row['low']:.2f} .. {row['high']:.2f})"


def figure(row: Mapping[str, Any], name: str, *, digits: int = 2) -> str:
    """A number of a row, if it has it."""
    value = row.get(name)
    return NOTHING if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """In percent."""
    return NOTHING if value is None else percent(value)


def duration(seconds: float | None) -> str:
    """As a person says it."""
    return NOTHING if seconds is None else duration_text(seconds)
