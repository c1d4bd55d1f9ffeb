"""One process at a time writes a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from loradock.errors import Locked, UsageError
from loradock.use.inference.journal import Journal


def test_a_second_writer_of_a_result_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    with Journal(output, identity={"seed": 0}) as first:
        first.add("a", [1])
        first.flush()
        with pytest.raises(Locked, match=r"another process is writing .*answers\.jsonl"), Journal(output, identity={}):
            pytest.fail("two writers")
        first.add("b", [2])
        first.finish("whole")
    assert output.read_text() == "whole"
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]


def test_what_a_killed_writer_left_is_taken_over_with_its_lock_file(tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    with Journal(output, identity={"seed": 0}) as first:
        first.add("a", [1])
        first.flush()
    (tmp_path / ".answers.jsonl.lock").touch()
    with Journal(output, identity={"seed": 0}) as second:
        assert second.done == {"a": [1]}


def test_a_line_that_was_edited_is_made_again_and_a_head_that_was_is_told(tmp_path: Path) -> None:
    output, file = tmp_path / "answers.jsonl", tmp_path / ".answers.jsonl.journal"
    head, good = '{"identity": {"seed": 0}}', '{"key": "a", "lines": [1]}'
    edited = ["[]", '{"key": [], "lines": 1}', '{"lines": 1}', "{", '{"key": "b", "lines": "no list"}']
    file.write_text("\n".join([head, *edited, good]) + "\n")
    with Journal(output, identity={"seed": 0}, takes=lambda lines: isinstance(lines, list)) as journal:
        assert journal.done == {"a": [1]}
    for damaged in ("[]", "{", '{"identity": 3}'):
        file.write_text(f"{damaged}\n{good}\n")
        with pytest.raises(UsageError, match="its first line is damaged"), Journal(output, identity={"seed": 0}):
            pytest.fail("taken")
