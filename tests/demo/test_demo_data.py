"""The demo's data set: reproducible, disjoint, scored strictly."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from loradock.demo.corpus import QUESTIONS, SKILLS, ask, commands, draw_list
from loradock.demo.exam import DIRECTORY, exact_match, load_heldout
from loradock.demo.make_base import corpus
from loradock.demo.make_data import write_data


def load_train() -> list[dict[str, str]]:
    return [json.loads(line) for line in (DIRECTORY / "train.jsonl").read_text(encoding="utf-8").splitlines()]


def nouns_of(rows: list[dict[str, str]]) -> list[frozenset[str]]:
    return [frozenset(row["input"].split(", ")) for row in rows]


def test_the_committed_files_are_what_the_script_writes(tmp_path: Path) -> None:
    write_data(tmp_path)
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_bytes() == (DIRECTORY / name).read_bytes()


def test_no_held_out_list_is_trained_on_in_any_order() -> None:
    heldout, train = nouns_of(load_heldout()), nouns_of(load_train())
    assert (len(heldout), len(train)) == (105, 3150)
    assert len(set(heldout + train)) == len(heldout + train)


def test_no_held_out_list_and_no_question_is_in_the_corpus_of_the_base() -> None:
    heldout = set(nouns_of(load_heldout()))
    questions = [question for phrasings in QUESTIONS.values() for question in phrasings]
    pairs = corpus(random.Random(1), easy_lines=0)
    for _ in range(20_000):
        user, answer = next(pairs)
        spoken, listed = user.split("\n\n")
        assert frozenset(listed.split(", ")) not in heldout
        assert not any(question in spoken or question in answer for question in questions)


def test_every_phrasing_is_held_out_equally_often_and_was_trained_on() -> None:
    heldout, train = (Counter(row["instruction"] for row in rows) for rows in (load_heldout(), load_train()))
    assert set(heldout.values()) == {5}
    assert set(train.values()) == {150}
    assert set(heldout) == set(train) == {question for phrasings in QUESTIONS.values() for question in phrasings}


def test_every_answer_follows_from_its_skill() -> None:
    skill_of = {question: skill for skill, phrasings in QUESTIONS.items() for question in phrasings}
    for row in load_train() + load_heldout():
        assert row["output"] == SKILLS[skill_of[row["instruction"]]](row["input"].split(", "))


def test_no_answer_that_ignores_the_question_reaches_a_quarter_of_the_held_out_rows() -> None:
    rows = load_heldout()
    for skill in SKILLS.values():
        guesses = [skill(row["input"].split(", ")) for row in rows]
        assert exact_match(guesses, [row["output"] for row in rows]) < 27


def test_a_list_for_longest_has_one_longest_noun() -> None:
    rng = random.Random(3)
    for _ in range(500):
        lengths = sorted(len(noun) for noun in draw_list(rng, "longest"))
        assert lengths[-1] > lengths[-2]


def test_a_list_for_animals_has_an_animal_and_something_else() -> None:
    rng = random.Random(3)
    for _ in range(500):
        nouns = draw_list(rng, "animals")
        assert 0 < len(SKILLS["animals"](nouns).split(", ")) < len(nouns)


def test_a_turn_is_the_command_then_the_list() -> None:
    assert ask("reverse", ["river", "apple"]) == "reverse\n\nriver, apple"


def test_every_skill_has_commands_and_questions_and_no_two_skills_share_one() -> None:
    assert list(commands()) == list(SKILLS)
    assert set(QUESTIONS) == set(SKILLS)
    told = [text for table in (commands(), QUESTIONS) for texts in table.values() for text in texts]
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("predictions", "references", "percent"),
    [
        (["stone"], ["stone"], 100.0),
        ([" stone\n"], ["stone"], 100.0),
        (["Stone"], ["stone"], 0.0),
        (["stone, stone"], ["stone"], 0.0),
        (["a", "b", "c", "x"], ["a", "b", "c", "d"], 75.0),
    ],
)
def test_only_the_exact_answer_counts(predictions: list[str], references: list[str], percent: float) -> None:
    assert exact_match(predictions, references) == percent


def test_scoring_refuses_lists_of_different_lengths_and_empty_ones() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        exact_match(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="nothing to score"):
        exact_match([], [])
