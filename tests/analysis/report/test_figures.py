"""Figures of a table are whole at every width, in a terminal and in a pipe."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from loradock.analysis.report import profile
from loradock.analysis.report.figures import Figures
from loradock.commands.evaluate_tables import figures

SOURCE = Path(profile.__file__).parents[2]
NAMES = ("task", "rows", "accuracy", "95 % interval", "per character", "95 % interval (name)", "perplexity", "rows/s")
ROWS = (
    ("commonsense_5k", "1,000", "73.4 %", "70.1 % to 76.2 %", "71.2 %", "69.9 % to 75.0 %", "12.344", "34.1"),
    ("openbookqa_test_500", "500", "55.2 %", "51.0 % to 59.3 %", "", "44.8 % to 50.1 %", "9.871", "33.7"),
)
OPERATORS = [
    {"name": "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "role": "attention", "seconds": 0.019},
    {"name": "bitsandbytes::dequantize_4bit", "role": "norm, rope, activation", "seconds": 0.2},
]


def text_at(columns: int, table: Figures) -> str:
    """What a console of so many columns prints."""
    page = io.StringIO()
    Console(width=columns, file=page).print(table)
    return page.getvalue()


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_every_figure_of_an_evaluation_is_whole(columns: int) -> None:
    text = text_at(columns, figures(NAMES, ROWS))
    assert "…" not in text, text
    for row in ROWS:
        assert all(cell in text for cell in row[1:]), text
    assert max(map(len, text.splitlines())) <= columns


def test_rows_stay_lines_where_there_is_space_and_become_blocks_where_not() -> None:
    lines = text_at(200, figures(NAMES, ROWS)).splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:3] == ["commonsense_5k", "1,000", "73.4"]
    block = text_at(60, figures(NAMES, ROWS)).splitlines()
    second = block.index(next(line for line in block if line.startswith("openbookqa")))
    assert [line.split("  ")[1] for line in block[1:second]] == list(NAMES[1:]), "a line a figure, with its name"
    assert not any("per character" in line for line in block[second:]), "a cell without a figure has no line"


def test_the_first_column_folds_before_rows_become_blocks() -> None:
    grid = Table(box=None)
    for name in ("where", "need", "have"):
        grid.add_column(name)
    grid.add_row("/a/very/long/path/of/a/scratch/directory/on/a/disk", "4.10 GiB", "60.0 GiB")
    columns = Figures(grid).least_columns(console := Console(width=200), console.options)
    assert columns < 50
    for width in (columns, columns + 10):
        first = text_at(width, Figures(grid)).splitlines()[1]
        assert first.strip().startswith("/a/very/long"), "a table of lines still"
        assert "4.10 GiB" in first
        assert "60.0 GiB" in first
    assert "need" in text_at(columns - 1, Figures(grid)).splitlines()[2]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_times_of_the_longest_operators_are_shown(columns: int) -> None:
    text = text_at(columns, profile.operator_table({"operators": [{**each, "count": 3268} for each in OPERATORS]}))
    assert text.count("3,268 x") == 2, text
    for time in ("19 ms", "200 ms"):
        assert time in text, text


def test_other_tables_say_how_they_fit() -> None:
    """Who draws a table of rich by himself must fold, or leave out by name, what does not fit."""
    by_themselves = {
        "analysis/report/console.py": "a name, a value and prose, which is folded; bytes of memory, one column",
        "analysis/report/data_stats.py": "the first column alone is folded; headings have two lines",
        "analysis/report/diagnosis.py": "names the columns that it leaves out",
        "analysis/report/figures.py": "the names of a block are folded",
    }
    drawing = {
        str(path.relative_to(SOURCE)): text
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bTable\(", text := path.read_text(encoding="utf-8"))
    }
    assert {name for name, text in drawing.items() if "Figures(" not in text} | {"analysis/report/figures.py"} == set(
        by_themselves
    )
