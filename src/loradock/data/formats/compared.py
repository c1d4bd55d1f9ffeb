"""Several answers of one prompt with what was said of them: which of two won, or a score or rank for each.

Of ranked answers the best and the worst become the pair. Columns are those of PKU-SafeRLHF, HelpSteer2, Chatbot Arena,
UltraFeedback and Nectar.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loradock.data.formats import preference
from loradock.data.formats.base import Format, PreferencePair
from loradock.data.formats.fields import Misfit, Row, RowError, is_filled, is_list, is_object, plainly_said, value_of

TIE = "a tie: neither answer is preferred, and the row cannot be learned from"
TIE_HINT = "leave such rows out: --set data.on_bad_row=skip --set data.max_dropped=1"
WINNERS = {"model_a": True, "a": True, "response_a": True, "model_b": False, "b": False, "response_b": False}
MORE = ("input", "system", "tools", preference.MARGIN)
TEXTS, SCORES, RANKS = (
    ("answer", "response", "text", "content", "output", "completion"),
    ("overall_score", "score", "rating", "fine-grained_score"),
    ("rank", "ranking"),
)
"""Columns of an answer in a list of them; the best has the largest score, or the smallest rank."""
SCORED = ("responses", "scores")
"""Two lists: answers, and how good each of them is."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Two columns of answers, and one that says which is better: `is_first` of its value, None for a tie.

    `is_first` raises ValueError for what is no verdict.
    """

    first: str
    second: str
    column: str
    is_first: Callable[[Any], bool | None]
    values: str


def _by_number(first: float) -> Callable[[Any], bool | None]:
    """0 and 1 as which answer is better; the first one where the value is `first`."""

    def is_first(value: Any) -> bool | None:
        number = float(value)
        if number not in (0, 1):
            raise ValueError(value)
        return number == first

    return is_first


def _by_name(value: Any) -> bool | None:
    """`model_a`, `model_b`, or one of the words that begin with tie."""
    name = str(value).strip().lower()
    if name.startswith("tie"):
        return None
    if name not in WINNERS:
        raise ValueError(value)
    return WINNERS[name]


def _by_strength(value: Any) -> bool | None:
    """Below 0: the first is better, above 0: the second."""
    number = float(value)
    if math.isnan(number):
        raise ValueError(value)
    return None if number == 0 else number < 0


NAMES = "model_a, model_b or tie"


def _of_two(row: Row, verdict: Verdict) -> PreferencePair:
    said = value_of(row, verdict.column)
    try:
        is_first = verdict.is_first(said)
    except (TypeError, ValueError, OverflowError):
        what = f"{verdict.column} is {plainly_said(said)}: it says which answer is better by {verdict.values}"
        raise RowError(what) from None
    if is_first is None:
        raise RowError(f"{verdict.column} says {TIE}", hint=TIE_HINT)
    first, second = value_of(row, verdict.first), value_of(row, verdict.second)
    chosen, rejected = (first, second) if is_first else (second, first)
    rest = {name: value for name, value in row.items() if name not in (verdict.first, verdict.second, verdict.column)}
    return preference.pair_of(rest | {"chosen": chosen, "rejected": rejected})


def _compared(name: str, verdict: Verdict, *, example: str) -> Format:
    return Format(
        name=name,
        fields=(verdict.first, verdict.second, verdict.column, *preference.ASKING, *MORE),
        required=(verdict.first, verdict.second, verdict.column),
        kind="preferences",
        convert=lambda row: _of_two(row, verdict),
        example=example,
    )


def _of_list(row: Row, column: str) -> PreferencePair:
    answers = value_of(row, column)
    graded = _graded(answers)
    if graded is None:
        raise Misfit(f"{column} is not a list of answers that each have a text ({TEXTS[0]}, ...) and a score or a rank")
    columns = {name: value for name, value in row.items() if name != column}
    return _best_and_worst(columns, graded, column)


def _best_and_worst(columns: dict[str, Any], graded: list[tuple[float, Any]], column: str) -> PreferencePair:
    """The pair of the graded answers in a column, with the other columns of their row."""
    if len(graded) == 1:
        what = f"{column}: one answer alone has a text and a score or rank: none is preferred to another"
        raise RowError(what, hint=TIE_HINT)
    (worst, rejected), (best, chosen) = min(graded, key=lambda each: each[0]), max(graded, key=lambda each: each[0])
    if worst == best:
        raise RowError(f"{column}: all {len(graded)} answers are {TIE}", hint=TIE_HINT)
    return preference.pair_of(columns | {"chosen": chosen, "rejected": rejected})


def _of_scores(row: Row) -> PreferencePair:
    answers, scores = (value_of(row, name) for name in SCORED)
    graded = _scored(answers, scores)
    if graded is None:
        raise Misfit(f"{SCORED[0]} and {SCORED[1]} are not a list of answers and one of as many numbers")
    columns = {name: value for name, value in row.items() if name not in SCORED}
    return _best_and_worst(columns, graded, SCORED[0])


def _scored(answers: object, scores: object) -> list[tuple[float, Any]] | None:
    """The answers with their scores; None where these are no two such lists. An answer without either is left out."""
    if not is_list(answers) or not is_list(scores) or not answers or len(answers) != len(scores):
        return None
    grades = map(_grade, scores)
    return [
        (grade, answer)
        for answer, grade in zip(answers, grades, strict=True)
        if grade is not None and is_filled(answer)
    ] or None


def _grade(value: object) -> float | None:
    """A score or rank as a number; None of null, NaN, and all else that is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


def _graded(answers: object) -> list[tuple[float, Any]] | None:
    """How good each answer of a list is, and the answer; None where they are no such list. One without is left out."""
    if not is_list(answers) or not answers or not all(map(is_object, answers)):
        return None
    text = next((name for name in TEXTS if name in answers[0]), None)
    grade = next((name for name in (*SCORES, *RANKS) if name in answers[0]), None)
    if text is None or grade is None:
        return None
    sign = -1 if grade in RANKS else 1
    numbers = [_grade(each.get(grade)) for each in answers]
    return [
        (sign * number, each[text])
        for number, each in zip(numbers, answers, strict=True)
        if number is not None and is_filled(each.get(text))
    ] or None


def _ranked(name: str, column: str, *, example: str) -> Format:
    return Format(
        name=name,
        fields=(column, *preference.ASKING, *MORE),
        required=(column,),
        kind="preferences",
        convert=lambda row: _of_list(row, column),
        inner_keys=frozenset({*TEXTS, *SCORES, *RANKS}),
        example=example,
        fits=lambda row: _graded(row[column]) is not None,
    )


BETTER_RESPONSE = _compared(
    "better-response",
    Verdict(
        first="response_0", second="response_1", column="better_response_id", is_first=_by_number(0), values="0 or 1"
    ),
    example='{"prompt": "Two and two?", "response_0": "Four.", "response_1": "Five.", "better_response_id": 0}',
)
PREFERENCE_STRENGTH = _compared(
    "preference-strength",
    Verdict(
        first="response_1",
        second="response_2",
        column="preference_strength",
        is_first=_by_strength,
        values="a number, below 0 where response_1 is better",
    ),
    example='{"prompt": "Two and two?", "response_1": "Four.", "response_2": "Five.", "preference_strength": -2}',
)
ARENA = _compared(
    "arena",
    Verdict(first="conversation_a", second="conversation_b", column="winner", is_first=_by_name, values=NAMES),
    example='{"conversation_a": [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "Four."}'
    '], "conversation_b": [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "Five."}], '
    '"winner": "model_a"}',
)
WINNER = _compared(
    "winner",
    Verdict(first="response_a", second="response_b", column="winner", is_first=_by_name, values=NAMES),
    example='{"prompt": "Two and two?", "response_a": "Four.", "response_b": "Five.", "winner": "model_a"}',
)
RANKED_COMPLETIONS = _ranked(
    "ranked-completions",
    "completions",
    example='{"instruction": "Two and two?", "completions": [{"response": "Four.", "overall_score": 9}, '
    '{"response": "Five.", "overall_score": 2}]}',
)
RANKED_ANSWERS = _ranked(
    "ranked-answers",
    "answers",
    example='{"prompt": "Two and two?", "answers": [{"answer": "Four.", "rank": 1}, {"answer": "Five.", "rank": 2}]}',
)
SCORED_RESPONSES = Format(
    name="scored-responses",
    fields=(*SCORED, *preference.ASKING, *MORE),
    required=SCORED,
    kind="preferences",
    convert=_of_scores,
    example='{"prompt": "Two and two?", "responses": ["Four.", "Five."], "scores": [9, 2]}',
    fits=lambda row: _scored(*(row[name] for name in SCORED)) is not None,
    is_extra=True,
)
