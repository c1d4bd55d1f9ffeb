"""Rows that were trained on are found, all of them, and no others."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evaluation.made import NEEDS_DATA, SHARED, question, true_or_false, write
from tiny import WORDS

from loradock.config.sections.data import SourceConfig
from loradock.use.evaluation import tasks
from loradock.use.evaluation.contamination import find, normalised, stem, texts_of
from loradock.use.evaluation.items import of_data


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
    found = find(items, [(text,) for text in texts])
    assert set(found.questions) == {*whole, *noisy}
    assert set(found.stems) == {*moved, *long}
    assert found.trained == len(texts)


SENTENCES = [
    " ".join(random.Random(number).choices(WORDS, k=length)) for number, length in enumerate([3, 5, 9, 30] * 3)
]
FORMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda said: {"text": said},
    "text of a question and an answer": lambda said: {"text": f"Q: {said}? A: {said[::-1]}"},
    "text without words": lambda said: {"text": "+" * len(said)},
    "prompt and completion": lambda said: {"prompt": f"{said}:", "completion": f" {said[::-1]}"},
    "instruction": lambda said: {"instruction": said, "output": said[::-1]},
    "one turn": lambda said: {"messages": turns(said)},
    "several turns": lambda said: {"messages": turns("Hello.", said, f"And {said}?")},
    "a system turn": lambda said: {"messages": [{"role": "system", "content": "Be brief."}, *turns(said, said)]},
    "an answer to nothing": lambda said: {"messages": [{"role": "assistant", "content": said}]},
}


def turns(*asked: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": role, "content": said} for each in asked for role, said in zip(roles, (each, "Yes."), strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_that_were_trained_on_are_found_and_no_others(form: str, tmp_path: Path) -> None:
    trained, others = SENTENCES[::2], SENTENCES[1::2]
    rows = [write(tmp_path / name, [FORMS[form](each) for each in said]) for name, said in
            (("trained.json", trained), ("asked.json", trained + others))]  # fmt: skip
    items = of_data(rows[1], needs="rows").items
    found = find(items, texts_of([SourceConfig(path=str(rows[0]))]))
    expected = {row for row, said in enumerate(trained + others) if FORMS[form](said) in map(FORMS[form], trained)}
    assert found.rows == expected


def test_text_that_a_prompt_or_another_text_holds_is_found_too(tmp_path: Path) -> None:
    said = SENTENCES[3]
    items = of_data(write(tmp_path / "asked.json", [{"text": said}]), needs="rows").items
    for number, row in enumerate(
        ({"text": f"Once, {said}, and so on."}, {"prompt": said[:50], "completion": said[50:]})
    ):
        file = write(tmp_path / f"{number}.json", [row])
        assert find(items, texts_of([SourceConfig(path=str(file))])).rows == {0}, row


@NEEDS_DATA
def test_of_the_real_rows_two_questions_and_three_more_stems_stand_in_the_training_set() -> None:
    texts = list(texts_of([SourceConfig(path=str(SHARED / "commonsense_5k.json"))]))
    found = [
        find(task.read(task.file_in(SHARED)).items, texts)
        for task in (tasks.named(name) for name in ("boolq", "arc-easy", "openbookqa"))
    ]
    assert sum(len(each.questions) for each in found) == 2
    assert sum(len(each.rows) for each in found) == 5
