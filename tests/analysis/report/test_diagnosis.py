"""The table of `diagnose` in terminals of several widths: what it must show is whole in each."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from loradock.analysis.report import diagnosis

TITLE = "a checkpoint every 10 steps instead of every 1"
CONCLUSION = "not tried: can save at most 7 % (passes)"
ROWS: list[dict[str, Any]] = [
    {"title": "as it is", "samples_per_second": 54.5, "tokens_per_second": 1360, "memory_bytes": 636 << 20,
     "step_seconds": 0.1467},
    {"title": TITLE, "samples_per_second": 347.52, "tokens_per_second": 8666, "memory_bytes": 636 << 20,
     "step_seconds": 0.023, "speed_up": 6.4, "low": 4.89, "high": 8.38, "rounds": 3, "expected": 1.0,
     "seconds_saved": 246.0, "cost_saved": 0.08, "conclusion": "cause"},
    {"title": "adapters on [q_proj, v_proj] alone", "conclusion": CONCLUSION},
]  # fmt: skip
FIGURES = ("samples/s", "tokens/s", "memory", "step", "rounds", "expected", "saves", "cost saved")


def drawn(columns: int) -> list[str]:
    screen = Console(width=columns, color_system=None)
    with screen.capture() as captured:
        screen.print(diagnosis.trials_table({"rows": ROWS}, columns=columns))
    return captured.get().splitlines()


def column(lines: list[str], name: str, *, after: str) -> str:
    """What stands below a heading, or below its right end, down to the next heading."""
    start, end = lines[1].index(name), lines[1].find(after) if after else None
    return " ".join(" ".join(line[start:end] for line in lines[2:]).split())


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
def test_configuration_speed_up_and_conclusion_are_whole_at_any_width(columns: int) -> None:
    lines = drawn(columns)
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    heading = lines[1]
    first = min(heading.index(name) for name in (*FIGURES, "speed-up") if name in heading)
    titles = " ".join(line[:first] for line in lines[2:])
    assert all(word in titles.split() for word in f"as it is {TITLE}".split())
    assert "[q_proj," in titles
    assert "v_proj]" in titles
    assert "6.40x (4.89 .. 8.38)" in text
    conclusions = column(lines, "conclusion", after="")
    assert conclusions == f"- cause {CONCLUSION}"


def test_figures_give_way_by_rank_and_are_named_and_all_are_there_where_there_is_room() -> None:
    wide, narrow = drawn(200)[1], drawn(80)[1]
    assert all(name in wide for name in FIGURES)
    assert len(drawn(200)) == 2 + len(ROWS)
    assert diagnosis.left_out_line({"rows": ROWS}, columns=200) == ""
    left_out = diagnosis.left_out_line({"rows": ROWS}, columns=80)
    assert all((name in narrow) != (name in left_out) for name in FIGURES)
    assert "tokens/s" in drawn(100)[1]
    assert "rounds" not in drawn(100)[1]
