"""What is said of outcomes: shares, chance, majority class, unanswered, and what two models differ by."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from evaluation.made import question, write

from loradock.errors import UsageError
from loradock.use.evaluation import tasks
from loradock.use.evaluation.compare import compare
from loradock.use.evaluation.intervals import wilson
from loradock.use.evaluation.items import Items
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.evaluation.summary import score_of, summary, without


@pytest.fixture
def items(tmp_path: Path) -> Items:
    """Ten rows of three answers and ten of five."""
    rows = [question(number, answers=3 if number < 10 else 5) for number in range(20)]
    return tasks.named("arc-easy").read(write(tmp_path / "arc.json", rows))


def outcomes_of(items: Items, *, wrong: int = 0, silent: int = 0) -> list[Outcome]:
    """All right but the first `wrong`, and the first `silent` of these without an answer."""
    found: list[Outcome] = []
    for item in items.items:
        given = item.answer if item.row >= wrong else "" if item.row < silent else "none"
        finish = "length" if item.row < 5 else "stop"
        score = float(given == item.answer)
        found.append(
            Outcome(
                row=item.row,
                key=item.key,
                place=item.place,
                answer=item.answer,
                given=given,
                score=score,
                text=given,
                finish=finish,
            )
        )
    return found


def test_an_accuracy_has_what_it_has_to_be_compared_with(items: Items) -> None:
    found = summary("accuracy", items, outcomes_of(items, wrong=6, silent=2))
    assert (found.score.value, (found.score.low, found.score.high)) == (0.7, wilson(14, 20))
    assert found.chance == pytest.approx((10 / 3 + 10 / 5) / 20)
    answers = [item.answer for item in items.items]
    assert found.majority == max(map(answers.count, answers)) / 20
    assert answers.count(found.majority_answer or "") / 20 == found.majority
    assert (found.unanswered, found.stopped) == (0.1, 0.75)
    assert found.perplexity is None
    assert found.detectable is None  # 20 rows show no difference of two models that disagree on two of them


@pytest.mark.parametrize(("wrong", "bounds"), [(20, wilson(0, 20)), (0, wilson(20, 20))])
def test_texts_that_are_all_right_or_all_wrong_have_an_interval_with_a_width(
    items: Items, wrong: int, bounds: tuple[float, float]
) -> None:
    score = score_of("f1", outcomes_of(items, wrong=wrong))
    assert (score.low, score.high) == bounds


def test_the_score_without_rows_is_of_the_others(items: Items) -> None:
    left = without(outcomes_of(items, wrong=6), {0, 1, 2, 19})
    assert score_of("accuracy", left).value == 13 / 16


def test_a_loss_is_a_mean_over_tokens_with_its_perplexity(items: Items) -> None:
    outcomes = [replace(each, score=2.0 * (each.row + 1), tokens=each.row + 1) for each in outcomes_of(items)]
    found = summary("loss", items, outcomes)
    assert (found.score.value, found.score.low, found.score.high) == (2.0, 2.0, 2.0)
    assert found.perplexity == pytest.approx(math.exp(2))
    assert found.detectable is None
    paired = compare({"a": "loss"}, {"a": outcomes}, {"a": [replace(each, score=each.score / 2) for each in outcomes]})
    assert paired["a"].difference.difference == pytest.approx(1.0)


def test_two_models_are_compared_row_by_row_and_over_tasks(items: Items) -> None:
    own, other = outcomes_of(items), outcomes_of(items, wrong=8)
    metrics = {"a": "accuracy", "b": "exact", "c": "f1"}
    found = compare(metrics, dict.fromkeys(metrics, own), {"a": other, "b": own, "c": other})
    assert (found["a"].difference.own_only, found["a"].difference.other_only) == (8, 0)
    assert found["a"].difference.p == pytest.approx(2 / 2**8)
    assert found["a"].disagreement == 0.4
    assert found["b"].difference.p == 1
    assert found["b"].detectable is None
    assert found["c"].disagreement is None
    assert found["a"].p_holm >= 2 * found["a"].difference.p


def test_what_cannot_be_compared_is_refused(items: Items) -> None:
    own = outcomes_of(items)
    with pytest.raises(UsageError, match="different rows"):
        compare({"a": "accuracy"}, {"a": own}, {"a": own[:-1]})
    one, two = ([replace(each, tokens=count) for each in own] for count in (3, 4))
    with pytest.raises(UsageError, match="losses per token"):
        compare({"a": "loss"}, {"a": one}, {"a": two})
