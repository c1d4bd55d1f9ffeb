"""Rows that do not fit the model's positions: what is said of them, and the length of answers that fits all."""

from __future__ import annotations

import pytest

from loradock.data.formats.base import Completion
from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods import Work
from loradock.use.evaluation.scoring import too_long


def work(*, prompt: int, answer: int = 0) -> Work:
    item = Item(row=prompt, place=f"rows.jsonl:{prompt}", sample=Completion("a", "b"), answer="b")
    return Work(item=item, longest=prompt + answer, tokens=prompt, logits=1, given=[], generated=answer)


def test_an_answer_that_has_no_room_is_told_with_the_length_that_all_rows_have_room_for() -> None:
    works = [work(prompt=length, answer=256) for length in (300, 400, 100, 600)]
    first, second, third = too_long(works, 512)
    assert first.what == "the prompt has 300 tokens, an answer up to 256, and the model takes 512"
    assert (first.hint, second.hint) == ("--max-new-tokens 112",) * 2
    assert (third.what, third.hint) == ("the prompt has 600 tokens, and the model takes 512", None)


@pytest.mark.parametrize("works", [[work(prompt=600)], [work(prompt=600, answer=8)]])
def test_a_row_that_is_too_long_by_itself_has_no_such_hint(works: list[Work]) -> None:
    (problem,) = too_long(works, 512)
    assert "600 tokens" in problem.what
    assert problem.hint is None
