"""Supervised fine-tuning."""

from loradock.catalog.objectives.base import ObjectiveSpec

SPEC = ObjectiveSpec(
    name="supervised",
    meaning="to answer",
    samples=frozenset({"rows"}),
    passes=frozenset({"likelihood"}),
    computed_by="supervised:Supervised",
)
