"""The one did-you-mean: which name is near, how it is asked for, and that no other module asks in words of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import loradock
from loradock.text.suggest import MOST_COMPARED, did_you_mean, named_by, nearest, sentence

SOURCE = Path(loradock.__file__).parent


@pytest.mark.parametrize("name", ["q_porj", "Q_PROJ", "q-proj", "qproj"])
def test_a_slip_and_another_case_lead_to_the_name_that_is_spelt_most_like_it(name: str) -> None:
    assert nearest(name, ["o_proj", "q_proj", "lm_head"]) == "q_proj"


def test_a_name_comes_back_as_its_owner_writes_it() -> None:
    assert nearest("readme.md", ["README.md", "train.jsonl"]) == "README.md"


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert nearest("zebra", ["q_proj"]) is did_you_mean("zebra", ["q_proj"]) is did_you_mean("zebra", []) is None


def test_a_million_names_of_somebody_cost_no_more_than_a_thousand() -> None:
    names = (f"column{number}" for number in range(10**6))
    assert nearest("column7", names) == "column7"
    assert next(names) == f"column{MOST_COMPARED}"


def test_what_the_sentence_asks_for_can_be_read_back_from_it() -> None:
    assert did_you_mean("quiet", ["quite"], before="--") == "did you mean --quite?"
    assert named_by(did_you_mean("quiet", ["quite"], before="--")) == "--quite"
    assert sentence("a", "b") == "did you mean a or b?"
    assert named_by("ls -l DIR") is named_by(None) is None


def test_no_other_module_compares_spellings_or_words_the_question() -> None:
    own = SOURCE / "text" / "suggest.py"
    pattern = re.compile(r"\bdifflib\b|[\"'{]did you mean ")
    assert [file for file in SOURCE.rglob("*.py") if pattern.search(file.read_text()) and file != own] == []
