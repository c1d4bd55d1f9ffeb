"""`loradock data show`: rows as the model sees them, in a terminal, in a pipe and as a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from data.tool_templates import HERMES
from faults.forking import Forking
from terminal import lines_at

from loradock.cli import cli
from loradock.errors import UsageError

pytestmark = pytest.mark.thin(2)

ANSWERS = ("stone apple </s> river", "green <b>horse</b>", "table " * 30)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    rows = [
        [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": answer}]
        for number, answer in enumerate(ANSWERS)
    ]
    file.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def show(llama: Path, chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LORADOCK_CACHE", str(tmp_path / "cache"))

    def invoke(*arguments: object) -> Result:
        fixed = ["data", "show", "--model", str(llama), "--data", str(chats)]
        return CliRunner().invoke(cli, [*fixed, *map(str, arguments)])

    return invoke


def learned(text: str) -> list[str]:
    return re.findall("\u27e6(.*?)\u27e7", text, flags=re.DOTALL)[1:]  # the first is the legend's


def test_learned_text_is_marked_without_colour_and_control_tokens_apart_from_their_text(show: Any) -> None:
    ended = show("--set", "data.template=alpaca")
    assert ended.exit_code == 0, ended.output
    found = [each.replace("\n", "") for each in learned(ended.stdout)]
    assert found[0] == "stone apple </s> river\u2039</s>\u203a"
    assert found[1] == "green <b>horse</b>\u2039</s>\u203a"
    assert "row 2, " in ended.stdout
    assert "chats.jsonl:2: " in ended.stdout
    assert "\x1b" not in ended.stdout
    assert "</s> 1x" in ended.stderr
    assert "learned: " in ended.stderr


def test_one_row_by_its_number_and_what_a_length_cuts_of_it(show: Any) -> None:
    ended = show("--row", 3, "--set", "data.max_length=30")
    (heading,) = [line for line in ended.stdout.splitlines() if line.startswith("row ")]
    assert re.fullmatch(
        r"row 3, .*chats\.jsonl:3: [\d,]+ tokens, .* beyond the length, \d+ of them learned; split into windows",
        heading,
    )
    assert "\u2e28" in ended.stdout.partition(heading)[2]
    refused = show("--row", 4)
    assert isinstance(refused.exception, UsageError)
    assert "--row 1 to --row 3" in str(refused.exception)


def test_a_sample_is_the_same_each_time(show: Any) -> None:
    one, two = show("--sample", 2).stdout, show("--sample", 2).stdout
    assert one == two
    assert len([line for line in one.splitlines() if line.startswith("row ")]) == 2


def test_the_page_is_self_contained_and_shows_the_same_text(show: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.html"
    ended = show("--set", "data.template=alpaca", "--html", file)
    assert ended.exit_code == 0, ended.output
    page = file.read_text(encoding="utf-8")
    assert '<span class="learned">stone apple &lt;/s&gt; river</span>' in page
    assert '<span class="learned control">&lt;/s&gt;</span>' in page
    assert "&lt;b&gt;horse&lt;/b&gt;" in page
    assert not re.search(r"(src|href|url)\s*[=(]", page)


def test_a_terminal_of_80_columns_folds_and_colours(llama: Path, chats: Path, tmp_path: Path, forking: Forking) -> None:
    lines = lines_at(forking, tmp_path, 80, "data", "show", "--model", llama, "--data", chats)
    assert max(map(len, lines)) <= 80


def test_a_row_and_a_sample_cannot_be_asked_for_together(show: Any) -> None:
    assert isinstance(show("--row", 2, "--sample", 3).exception, UsageError)


def test_columns_that_no_field_takes_are_told(show: Any, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({"instruction": "a", "output": "b", "url": "u"}) + "\n", encoding="utf-8")
    assert "columns not used by format alpaca: url (100 % of rows, such as 'u')" in show("--data", file).stderr


def test_a_row_with_tools_shows_its_call_as_learned_and_definitions_and_results_as_read(
    show: Any, llama: Path, tmp_path: Path
) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "rain", "arguments": "{}"}}]}
    turns = [{"role": "user", "content": "Rain?"}, called, {"role": "tool", "content": "ja"}]
    row = {"tools": [{"name": "rain", "description": "Is it?"}], "messages": [*turns, {**turns[1]}]}
    file = tmp_path / "tools.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    ended = show("--data", file, "--set", "data.tools=text")
    assert ended.exit_code == 0, ended.output
    found = [each.replace("\n", "") for each in learned(ended.stdout)][len(ANSWERS) :]
    assert len(found) == 2
    assert all('{"name": "rain", "arguments": {}}' in each for each in found)
    assert "Is it?" in ended.stdout
    assert "Result of rain: ja" in ended.stdout
    (tmp_path / "hermes.jinja").write_text(HERMES, encoding="utf-8")
    ended = show("--data", file, "--set", f"data.template={tmp_path / 'hermes.jinja'}")
    assert [each.count("<tool_call>") for each in learned(ended.stdout)] == [0, 0, 0, 1, 1]
    refused = show("--data", file)
    assert "--set data.tools=text" in str(refused.exception)
