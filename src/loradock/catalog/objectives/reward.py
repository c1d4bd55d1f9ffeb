"""Reward models: a score of an answer, by which the chosen one of two is better than the rejected one."""

from __future__ import annotations

from loradock.catalog.objectives.base import ObjectiveSpec

SPEC = ObjectiveSpec(
    name="reward",
    meaning="to score answers",
    samples=frozenset({"preferences"}),
    passes=frozenset({"embed"}),
    has_head=True,
    reads_margins=True,
    computed_by="reward:Reward",
    metrics=("loss", "preference_accuracy", "reward_margin"),
    keys=("reward.",),
    defaults={"train.learning_rate": 1e-4},
    without_effect={
        "data.loss": "objective reward scores answers, and learns no token",
        "data.overlap": "objective reward never splits an answer",
        "evaluation.tasks": "objective reward scores answers, and writes none",
        "train.packing": "objective reward packs its answers on the fast engine, and pads them on others",
    },
)
