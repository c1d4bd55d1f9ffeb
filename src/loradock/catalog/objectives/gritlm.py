"""GritLM (Muennighoff et al. 2024): one model that answers and embeds."""

from loradock.catalog.objectives.base import ObjectiveSpec

SPEC = ObjectiveSpec(
    name="gritlm",
    meaning="both together",
    samples=frozenset({"rows", "pairs"}),
    passes=frozenset({"likelihood", "embed"}),
    computed_by="gritlm:Gritlm",
    batch_key="embedding.global_batch",
    metrics=("loss", "embedding_loss", "generative_loss", "in_batch_accuracy"),
    keys=("embedding.", "train.generative_loss", "train.generative_weight"),
)
