"""Tables in a file or pipe are as wide as COLUMNS says, and are not padded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from faults.forking import Forking
from proven import unchecked
from rich.cells import cell_len
from rich.table import Table
from terminal import on_a_terminal
from tiny import write_rows

from loradock.cli import cli
from loradock.commands import page
from loradock.demo import exam

pytestmark = pytest.mark.thin(1)

COPIED = re.compile(r" *(?:\(?(?:--set \S+ ?)+\)?,?|-> .*|\S+)")
PLAN = ("plan", "--model", str(exam.CONFIG.parent / "base"), "--rows", "100", "--mean-tokens", "50")


@pytest.mark.parametrize(("columns", "most"), [("70", 70), ("100", 100), (None, 120), ("wide", 120)])
def test_a_piped_table_is_as_wide_as_columns_says(columns: str | None, most: int) -> None:
    done = CliRunner(env={"COLUMNS": columns}).invoke(cli, PLAN)
    assert done.exit_code == 0, done.exception
    lines = done.stdout.splitlines()
    table = lines[lines.index("plan") : lines.index("memory expected")]
    assert most - 25 < max(map(len, table)) <= most
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("columns", [60, 80])
def test_no_line_is_wider_than_the_terminal_but_for_what_is_copied(
    columns: int, tmp_path: Path, forking: Forking
) -> None:
    rows, run = write_rows(tmp_path / "rows.jsonl"), tmp_path / "run"
    given = ("--model", str(exam.CONFIG.parent / "base"), "--data", str(rows))
    trained = ("--max-steps", "1", "--output", str(run), "--set", "data.validation=8", unchecked("only what is shown"))
    commands = (
        ("plan", *given, "--gpu", "a10", "--price-per-hour", "1"),
        (
            "config",
            "validate",
            *given,
            "--set",
            "after.merge=auto",
            "--set",
            "evaluation.tasks=[boolq=no/such/file.json]",
        ),
        ("env-check", "--level", "quick"),
        ("train", *given, *trained),
    )
    for command in commands:
        seen = on_a_terminal(forking, tmp_path, *command, columns=columns)
        lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", seen).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert len(lines) > 1, seen
        assert [each for each in lines if cell_len(each) > columns and not COPIED.fullmatch(each)] == [], command


def test_prose_in_a_pipe_stays_whole_without_columns_and_options_side_by_side_do_everywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--set train.lr=1e-4 --set 'lora.targets=[q_proj, v_proj]'"
    said = f"warning: {'word ' * 20}({options}), or `loradock data stats --model DIR`: try"
    monkeypatch.delenv("COLUMNS", raising=False)
    page.say(said)
    assert capsys.readouterr().out == f"{said}\n"
    monkeypatch.setenv("COLUMNS", "50")
    page.say(said)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"  ({options}),", "  or `loradock data stats --model DIR`: try"]
    assert max(map(len, lines[:-2])) <= 50
    assert " ".join(map(str.strip, lines)) == said


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
