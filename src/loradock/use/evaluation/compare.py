"""Two models on the same rows: the difference of each task, tested pair by pair, and over all tasks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loradock.errors import UsageError
from loradock.use.evaluation.intervals import Difference, detectable, holm, paired_means, paired_shares
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.evaluation.summary import SHARES


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Own minus other. `p_holm`: p adjusted for the number of tasks (Holm).

    `disagreement`: share of rows on which one alone is right; `detectable`: the difference that rows and disagreement
    show with 80 % power. None for scores that are not right or wrong, and where they show none. `names`: the difference
    of calls whose tools are right, whatever the arguments.
    """

    difference: Difference
    p_holm: float
    disagreement: float | None = None
    detectable: float | None = None
    names: Difference | None = None


def compare(
    metrics: Mapping[str, str], own: Mapping[str, Sequence[Outcome]], other: Mapping[str, Sequence[Outcome]]
) -> dict[str, Comparison]:
    """Each task by name, in the order of `metrics`. UsageError where rows differ, or losses cannot be compared."""
    differences = {name: _difference(metric, own[name], other[name], name=name) for name, metric in metrics.items()}
    adjusted = holm([difference.p for difference in differences.values()])
    return {
        name: replace(_comparison(difference, len(own[name]), p_holm=p), names=_of_names(own[name], other[name]))
        for (name, difference), p in zip(differences.items(), adjusted, strict=True)
    }


def _difference(metric: str, own: Sequence[Outcome], other: Sequence[Outcome], *, name: str) -> Difference:
    if [(outcome.row, outcome.key) for outcome in own] != [(outcome.row, outcome.key) for outcome in other]:
        raise UsageError(f"{name}: the two were evaluated on different rows", hint="evaluate both on the same file")
    if metric in SHARES:
        return paired_shares([outcome.score == 1 for outcome in own], [outcome.score == 1 for outcome in other])
    if metric != "loss":
        return paired_means([outcome.score for outcome in own], [outcome.score for outcome in other])
    if [outcome.tokens for outcome in own] != [outcome.tokens for outcome in other]:
        what = f"{name}: losses per token of different tokenizers or templates cannot be compared"
        raise UsageError(what, hint="--metric exact, f1 or rouge-l compares what the models say")
    mean = sum(outcome.tokens or 0 for outcome in own) / len(own)
    return paired_means([outcome.score / mean for outcome in own], [outcome.score / mean for outcome in other])


def _of_names(own: Sequence[Outcome], other: Sequence[Outcome]) -> Difference | None:
    if any(outcome.names is None for outcome in (*own, *other)):
        return None
    return paired_shares([outcome.names == 1 for outcome in own], [outcome.names == 1 for outcome in other])


def _comparison(difference: Difference, rows: int, *, p_holm: float) -> Comparison:
    if difference.own_only is None or difference.other_only is None:
        return Comparison(difference=difference, p_holm=p_holm)
    disagreement = (difference.own_only + difference.other_only) / rows
    smallest = detectable(rows, disagreement) if disagreement else None
    return Comparison(difference=difference, p_holm=p_holm, disagreement=disagreement, detectable=smallest)
