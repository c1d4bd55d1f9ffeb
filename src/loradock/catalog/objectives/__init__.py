"""The table of objectives: what a run optimises. To add one: a module with a SPEC, and its line here."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from loradock.catalog.objectives import embedding, gritlm, preference, reward, supervised
from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.catalog.samples import SampleKind

OBJECTIVES: dict[str, ObjectiveSpec] = {
    spec.name: spec
    for spec in (
        supervised.SPEC,
        embedding.SPEC,
        gritlm.SPEC,
        preference.SPEC,
        reward.SPEC,
    )
}
DEFAULT = supervised.SPEC.name
METRICS = tuple(dict.fromkeys(metric for spec in OBJECTIVES.values() for metric in spec.metrics))

if TYPE_CHECKING:
    ObjectiveName = str
    Metric = str
else:
    ObjectiveName = Literal[tuple(OBJECTIVES)]
    Metric = Literal[METRICS]


def owners(key: str) -> tuple[ObjectiveSpec, ...]:
    """The objectives that a key belongs to; none where it belongs to all runs."""
    return tuple(spec for spec in OBJECTIVES.values() if spec.owns(key))


def is_foreign(key: str, spec: ObjectiveSpec) -> bool:
    """Whether a key belongs to other objectives alone."""
    return bool(owners(key)) and not spec.owns(key)


def learning_from(kinds: Collection[SampleKind]) -> ObjectiveSpec:
    """The first objective that learns from just these kinds of samples; where none does, from some of them."""
    specs = [each for spec in OBJECTIVES.values() for each in (spec, *spec.variants)]
    exact = (spec for spec in specs if spec.samples == frozenset(kinds))
    return next(exact, None) or next(spec for spec in specs if spec.samples & frozenset(kinds))
