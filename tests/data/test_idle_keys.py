"""Keys about text files and tools that find none in the rows: told, and not where they find some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loradock import demo
from loradock.cli import cli

pytestmark = pytest.mark.thin(2)

BASE = Path(demo.__file__).parent / "base"
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "rain", "arguments": {"city": "Oslo"}}}]}
TALK = {"messages": [{"role": "user", "content": "Rain in Oslo?"}, CALL]}
PLAIN = {"prompt": "Rain?", "completion": " Yes."}


def said(folder: Path, row: dict[str, Any], *sets: str, verb: str = "stats") -> str:
    (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    (folder / "book.txt").write_text("A line.\nAnother line.\n")
    words = [word for each in (*sets, f"data.cache={folder / 'cache'}") for word in ("--set", each)]
    command = ["data", verb, "--model", str(BASE), "--data", str(folder / "rows.jsonl"), *words]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.exception
    return done.stderr.replace("\n", " ")


@pytest.mark.parametrize("verb", ["stats", "show"])
def test_a_choice_of_what_a_document_of_text_is_has_no_effect_without_a_text_file(verb: str, tmp_path: Path) -> None:
    idle = "data.text line has no effect: no source is a text file"
    assert idle in said(tmp_path, PLAIN, "data.text=line", verb=verb)
    assert idle not in said(tmp_path, PLAIN, verb=verb)
    held_out = ("data.text=line", f"data.validation={tmp_path / 'book.txt'}")
    assert idle not in said(tmp_path, PLAIN, *held_out, verb=verb)


def test_an_argument_that_the_template_does_not_know_is_a_warning(tmp_path: Path) -> None:
    """A slip in enable_thinking would change what is learned, without a word."""
    idle = "warning: data.template_arguments.bos_tokens has no effect: the template ("
    given = "data.template_arguments={bos_token: x, bos_tokens: x}"
    assert said(tmp_path, TALK, given, "data.tools=text", "data.template=llama2").count("data.template_arguments.") == 1
    assert idle in said(tmp_path, TALK, given, "data.tools=text", "data.template=llama2")


def test_tools_as_text_are_counted_and_have_no_effect_where_no_row_has_any(tmp_path: Path) -> None:
    idle = "data.tools has no effect: no row has definitions, calls or results of tools"
    assert idle in said(tmp_path, PLAIN, "data.tools=text")
    assert idle in said(tmp_path, PLAIN, "data.tools=text"), "from the cache too"
    assert idle not in said(tmp_path, PLAIN)
    counted = "in 3 of 3 rows definitions, calls and results of tools are written as text (data.tools text)"
    assert counted in said(tmp_path, TALK, "data.tools=text", "data.template=chatml")
