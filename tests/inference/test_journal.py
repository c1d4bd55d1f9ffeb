"""One process at a time writes a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from loradock.errors import Locked
from loradock.inference.journal import Journal


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
