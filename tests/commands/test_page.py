"""Tables in a file or pipe are as wide as COLUMNS says, and are not padded."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from rich.table import Table

from loradock.cli import cli
from loradock.commands import page
from loradock.demo import exam

PLAN = ("plan", "--model", str(exam.CONFIG.parent / "base"), "--rows", "100", "--mean-tokens", "50")


@pytest.mark.parametrize(("columns", "most"), [("70", 70), ("100", 100), (None, 120), ("wide", 120)])
def test_a_piped_table_is_as_wide_as_columns_says(columns: str | None, most: int) -> None:
    done = CliRunner(env={"COLUMNS": columns}).invoke(cli, PLAN)
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    table = lines[lines.index("plan") : lines.index("memory expected")]
    assert most - 25 < max(map(len, table)) <= most
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_table_of_a_log_is_not_padded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    table = Table(box=None, expand=True)
    table.add_column("name [bold]")
    table.add_row("[a] " + "word " * 20)
    page.show(page.fitting_console(stderr=True), table)
    lines = capsys.readouterr().err.splitlines()
    assert "name [bold]" in lines[0]
    assert "[a] word" in lines[1]
    assert max(map(len, lines)) <= 50
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_decision_that_the_run_has_no_use_for_is_not_shown() -> None:
    assert "held_passes" not in CliRunner().invoke(cli, PLAN).stdout
    assert "held_passes" in CliRunner().invoke(cli, [*PLAN, "--json"]).stdout
