"""The protocol of LLM-Adapters: its prompt to the byte, its scorer, its generation."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from evaluation.made import question, write
from tiny import make_llama

from loradock.use.evaluation import tasks
from loradock.use.evaluation.methods import LlmAdapters
from loradock.use.evaluation.methods.llm_adapters import prompt_of, response_of
from loradock.use.inference.opener import open_model

pytestmark = pytest.mark.thin(1)

ANSWERS = {
    "boolq": "true|false",
    "piqa": "solution1|solution2",
    "siqa": "answer1|answer2|answer3|answer4|answer5",
    "arc-easy": "answer1|answer2|answer3|answer4|answer5",
    "arc-challenge": "answer1|answer2|answer3|answer4|answer5",
    "openbookqa": "answer1|answer2|answer3|answer4|answer5",
    "hellaswag": "ending1|ending2|ending3|ending4",
    "winogrande": "option1|option2",
}
"""What its scorer looks for, by task."""


def test_the_prompt_has_its_indentation_and_stray_spaces() -> None:
    wanted = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request. \n"
        "\n                ### Instruction:\n                Is it?\n\n                ### Response:\n                "
    )
    assert prompt_of("Is it?") == wanted
    assert response_of(f"{wanted} the correct answer is true\n### Response: more") == "the correct answer is true"


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_is_the_first_match_as_its_scorer_finds_it(name: str) -> None:
    draw = random.Random(name)
    task = tasks.named(name)
    words = [
        *task.words,
        *(each.capitalize() for each in task.words),
        "the",
        "answer",
        "is",
        "untrue",
        "answer11",
        "\n",
    ]
    for _ in range(1_000):
        text = draw.choice((" ", "")).join(draw.choices(words, k=draw.randint(0, 6)))
        found = re.findall(ANSWERS[name], text.strip())
        assert task.extract(text) == (found[0] if found else "")


def test_batches_of_its_generation_give_what_each_row_gives_alone(tmp_path: Path) -> None:
    opened = open_model(make_llama(tmp_path / "base"), dtype="float32", device="cpu")
    task = tasks.named("arc-easy")
    items = task.read(write(tmp_path / "arc.json", [question(number) for number in range(4)])).items
    method = LlmAdapters(opened, task)
    works = [method.prepare(item) for item in items]
    together = method.run(works)
    for work, outcome in zip(works, together, strict=True):
        ids = torch.tensor([opened.tokenizer(prompt_of(work.item.question))["input_ids"]])
        with torch.no_grad():
            alone = opened.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=4,
                max_new_tokens=32,
                do_sample=False,
                pad_token_id=0,
            )
        assert outcome.text == response_of(opened.tokenizer.decode(alone[0], skip_special_tokens=True))
        assert outcome.given == task.extract(outcome.text or "")
        assert outcome.finish in ("stop", "length")
