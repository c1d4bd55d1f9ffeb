"""Contrastive training of an embedding model."""

from loradock.catalog.objectives.base import ObjectiveSpec

TEMPLATE = "objective embedding has embedding.template"
LENGTH = "objective embedding has embedding.passage_length"
SPEC = ObjectiveSpec(
    name="embedding",
    meaning="to embed texts",
    samples=frozenset({"pairs"}),
    passes=frozenset({"embed"}),
    computed_by="embedding:Embedding",
    batch_key="embedding.global_batch",
    metrics=("loss", "in_batch_accuracy"),
    keys=("embedding.",),
    without_effect={
        "evaluation.tasks": "objective embedding answers nothing",
        "train.global_batch": "objective embedding counts pairs: embedding.global_batch",
        "embedding.weight": "objective embedding has one loss",
        "data.template": TEMPLATE,
        "data.loss": TEMPLATE,
        "data.long_rows": LENGTH,
        "data.max_length": LENGTH,
        "data.overlap": LENGTH,
        "data.min_tokens": "objective embedding takes texts of any length",
    },
)
