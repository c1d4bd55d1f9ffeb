"""Rows that were trained on are found, all of them, and no others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from evaluation.made import NEEDS_DATA, SHARED, question, true_or_false, write

from loradock.config.schema import SourceConfig
from loradock.evaluation import tasks
from loradock.evaluation.contamination import find, normalised, stem, texts_of


def test_the_stem_is_the_question_without_instruction_and_answers() -> None:
    text = "Please choose the correct answer to the question: Why is the Sky  blue?\n\nAnswer1: dust Answer2: light"
    assert stem(f"{text}\n\nAnswer format: answer1/answer2") == "why is the sky blue"
    assert stem("Why is the sky blue?\nA) dust\nB) light") == "why is the sky blue"
    assert stem("Please choose: Solution1: a Solution2: b") == "please choose solution1 a solution2 b"
    assert normalised("ﬁve ÄPFEL, (3)!") == "five äpfel 3"


@pytest.mark.parametrize("seed", range(5))
def test_planted_duplicates_are_all_found(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    file = write(tmp_path / "arc.json", [question(number) for number in range(300)])
    items = tasks.named("arc-easy").read(file).items
    planted = draw.sample(range(300), 60)
    whole, moved, inside, noisy = (planted[start : start + 15] for start in range(0, 60, 15))
    long = [row for row in inside if len(stem(items[row].question).split()) >= 8]
    texts = [items[row].question for row in whole]
    texts += [items[row].question.upper().replace(" ", "  ") for row in noisy]
    for row in moved:  # the answers stand in another order
        head, _, tail = items[row].question.partition("Answer1: ")
        texts.append(f"{head}Answer1: zebra Answer2: {tail}")
    texts += [f"Consider this: {stem(items[row].question)} and then say why" for row in long]
    texts += [true_or_false(number)["instruction"] for number in range(100)]
    draw.shuffle(texts)
    found = find(items, texts)
    assert set(found.questions) == {*whole, *noisy}
    assert set(found.stems) == {*moved, *long}
    assert found.trained == len(texts)


@NEEDS_DATA
def test_of_the_real_rows_two_questions_and_three_more_stems_stand_in_the_training_set() -> None:
    texts = list(texts_of([SourceConfig(path=str(SHARED / "commonsense_5k.json"))]))
    found = [
        find(task.read(task.file_in(SHARED)).items, texts)
        for task in (tasks.named(name) for name in ("boolq", "arc-easy", "openbookqa"))
    ]
    assert sum(len(each.questions) for each in found) == 2
    assert sum(len(each.rows) for each in found) == 5
