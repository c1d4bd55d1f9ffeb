"""Two models on the same rows: the difference of each task, tested pair by pair, and over all tasks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loradock.errors import UsageError
from loradock.use.evaluation.intervals import Difference, detectable, holm, paired_means, paired_shares
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.evaluation.summary import SHARES


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Own minus other. `p_holm`: p adjusted for the number of tasks (Holm).

    `disagreement`: share of rows on which one alone is right; `detectable`: the difference that rows and disagreement
    show with 80 % power. None for scores that are not right or wrong.
    """

    difference: Difference
    p_holm: float
    disagreement: float | None = None
    detectable: float | None = None


def compare(
    metrics: Mapping[str, str], own: Mapping[str, Sequence[Outcome]], other: Mapping[str, Sequence[Outcome]]
) -> dict[str, Comparison]:
    """Each task by name, in the order of `metrics`. UsageError where rows differ, or losses cannot be compared."""
    found = {name: _difference(metric, own[name], other[name], name=name) for name, metric in metrics.items()}
    adjusted = holm([each.p for each in found.values()])
    return {
        name: _comparison(each, len(own[name]), p_holm=p)
        for (name, each), p in zip(found.items(), adjusted, strict=True)
    }


def _difference(metric: str, own: Sequence[Outcome], other: Sequence[Outcome], *, name: str) -> Difference:
    if [(each.row, each.key) for each in own] != [(each.row, each.key) for each in other]:
        raise UsageError(f"{name}: the two were evaluated on different rows", hint="evaluate both on the same file")
    if metric in SHARES:
        return paired_shares([each.score == 1 for each in own], [each.score == 1 for each in other])
    if metric != "loss":
        return paired_means([each.score for each in own], [each.score for each in other])
    if [each.tokens for each in own] != [each.tokens for each in other]:
        what = f"{name}: losses per token of different tokenizers or templates cannot be compared"
        raise UsageError(what, hint="--metric exact, f1 or rouge-l compares what the models say")
    mean = sum(each.tokens or 0 for each in own) / len(own)
    return paired_means([each.score / mean for each in own], [each.score / mean for each in other])


def _comparison(found: Difference, rows: int, *, p_holm: float) -> Comparison:
    if found.own_only is None or found.other_only is None:
        return Comparison(difference=found, p_holm=p_holm)
    disagreement = (found.own_only + found.other_only) / rows
    seen = detectable(rows, disagreement) if disagreement else None
    return Comparison(difference=found, p_holm=p_holm, disagreement=disagreement, detectable=seen)
