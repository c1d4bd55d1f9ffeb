"""The table for people who come from other tools: our names are keys and verbs, theirs are answered so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from loradock.cli import COMMANDS, cli
from loradock.config.fields import keys
from loradock.config.other_tools.explained import EXPLAINED
from loradock.config.suggest import key_called

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 6]
KEYS = {key.name for key in keys()}


def names(cell: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", cell)


def test_the_table_has_lines_and_each_of_our_names_is_a_key() -> None:
    assert len(ROWS) > 30
    for ours, *_ in ROWS:
        assert names(ours)
        assert set(names(ours)) <= KEYS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: names(row[0])[0])
def test_each_name_of_theirs_is_answered_with_the_key_of_its_line(row: list[str]) -> None:
    ours, *theirs = row
    for name in (name for cell in theirs for name in names(cell)):
        key = key_called(name)
        if key is None:
            assert any(each in EXPLAINED[name] for each in names(ours)), name
        else:
            assert key in names(ours), name


def test_each_command_of_ours_is_one_that_there_is() -> None:
    for verb in re.findall(r"`loradock ([a-z-]+)", PAGE):
        assert verb in COMMANDS
    for option in re.findall(r"`loradock (\w+) (--\w+)`", PAGE):
        assert option[1] in CliRunner().invoke(cli, [option[0], "--help"]).stdout
