"""Outcomes to what is said of a task: the score with its interval, and what it has to be compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from loradock.use.evaluation.intervals import detectable, mean_interval, ratio_interval, wilson
from loradock.use.evaluation.items import NO_CALL, Item, Items
from loradock.use.evaluation.outcomes import Outcome

SHARES = ("accuracy", "exact", "calls")
"""Metrics that are the share of right rows."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score of `rows` rows with its 95 % interval: Wilson's for a share, a bootstrap over rows for others."""

    rows: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a task's outcomes say. None where it does not apply.

    `chance`: accuracy of guessing among the candidates; `majority`: of always giving `majority_answer`, the most
    frequent one; `normalised`: accuracy by log-probability per character; `unanswered`: share of rows without an answer
    in the generated text; `stopped`: share of generated texts that the model ended by itself; `detectable`: the
    difference to another model that these rows show with 80 % power, where the two disagree on 10 % of them, which too
    few rows do not. Of calls: `names` is the share of rows whose tools are right, whatever the arguments; `uncalled`:
    share without a call though the right answer is one; `unread`: share with one that cannot be read, which is wrong.
    """

    metric: str
    score: Score
    chance: float | None = None
    majority: float | None = None
    majority_answer: str | None = None
    normalised: float | None = None
    unanswered: float | None = None
    stopped: float | None = None
    perplexity: float | None = None
    detectable: float | None = None
    names: Score | None = None
    uncalled: float | None = None
    unread: float | None = None


def score_of(metric: str, outcomes: Sequence[Outcome]) -> Score:
    """The score of these rows, at least one."""
    values = [outcome.score for outcome in outcomes]
    # A bootstrap of texts that are all right or all wrong has no width.
    if metric in SHARES or (metric != "loss" and {*values} <= {0, 1}):
        return _share(values)
    if metric == "loss":
        tokens = [float(outcome.tokens or 0) for outcome in outcomes]
        low, high = ratio_interval(values, tokens)
        return Score(rows=len(values), value=sum(values) / sum(tokens), low=low, high=high)
    low, high = mean_interval(values)
    return Score(rows=len(values), value=sum(values) / len(values), low=low, high=high)


def _share(values: Sequence[float | None]) -> Score:
    right = sum(value == 1 for value in values)
    low, high = wilson(right, len(values))
    return Score(rows=len(values), value=right / len(values), low=low, high=high)


def summary(metric: str, items: Items, outcomes: Sequence[Outcome]) -> Summary:
    """Everything about a task's rows."""
    score = score_of(metric, outcomes)
    rows = len(outcomes)
    generated = [outcome for outcome in outcomes if outcome.finish]
    has_candidates = all(item.candidates for item in items.items)
    answer, most = _majority(items.items)
    is_calls = metric == "calls"
    return Summary(
        metric=metric,
        score=score,
        chance=_chance(items.items) if has_candidates else None,
        majority=most / rows if has_candidates else None,
        majority_answer=answer if has_candidates else None,
        normalised=_normalised(outcomes),
        unanswered=sum(not outcome.given for outcome in generated) / rows if generated and not is_calls else None,
        stopped=sum(outcome.finish == "stop" for outcome in generated) / rows if generated else None,
        perplexity=math.exp(min(score.value, 700.0)) if metric == "loss" else None,
        detectable=detectable(rows) if metric in SHARES else None,
        names=_share([outcome.names for outcome in outcomes]) if is_calls else None,
        uncalled=sum(outcome.given == NO_CALL != outcome.answer for outcome in outcomes) / rows if is_calls else None,
        unread=sum(outcome.unread is not None for outcome in outcomes) / rows if is_calls else None,
    )


def _majority(items: Sequence[Item]) -> tuple[str, int]:
    return Counter(item.answer for item in items).most_common(1)[0]


def _chance(items: Sequence[Item]) -> float:
    return sum(1 / len(item.candidates) for item in items) / len(items)


def _normalised(outcomes: Sequence[Outcome]) -> float | None:
    outcomes_normalised = [outcome for outcome in outcomes if outcome.normalised is not None]
    return (
        sum(outcome.normalised == outcome.answer for outcome in outcomes_normalised) / len(outcomes_normalised)
        if outcomes_normalised
        else None
    )


def without(outcomes: Sequence[Outcome], rows: Collection[int]) -> list[Outcome]:
    """The outcomes of all other rows."""
    return [outcome for outcome in outcomes if outcome.row not in rows]
