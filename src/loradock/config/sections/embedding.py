"""The section `embedding`: contrastive training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from loradock.config.sections.values import Place, Section, TextLength, Weight


class EmbeddingConfig(Section):
    """Contrastive training of an embedding model, under objective embedding or gritlm."""

    global_batch: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        default=64, description="Query-passage pairs per optimiser step, over all GPUs: each query against all of them."
    )
    attention: Literal["bidirectional", "causal"] = Field(
        default="bidirectional", description="What a token of a text to embed sees; generation stays causal."
    )
    pooling: Literal["mean", "weightedmean", "lasttoken", "cls"] = Field(
        default="mean", description="Which tokens make the vector; only mean and lasttoken are exported."
    )
    pool_instruction: bool = Field(
        default=False, description="Pool the tokens of the instruction too; they are always attended to."
    )
    temperature: Annotated[float, Field(ge=1e-4, le=10)] = Field(
        default=0.02, description="Cosine similarities are divided by it."
    )
    negatives: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=1, description="Hard negatives of each query; other ones are drawn in each epoch."
    )
    in_batch: bool = Field(
        default=True, description="Passages of the step's other queries are negatives too, across GPUs."
    )
    duplicates: Literal["mask", "keep"] = Field(
        default="mask", description="A passage with the text of a query's own positive: left out for it, or a negative."
    )
    query_length: TextLength = Field(default=256, description="Longest query in tokens.")
    passage_length: TextLength = Field(default=512, description="Longest passage in tokens.")
    template: Place = Field(
        default="gritlm", description="How instruction and text become one text: gritlm, e5, plain, or a .jinja file."
    )
    weight: Weight = Field(
        default=1.0, description="Objective gritlm: weight of the contrastive loss beside `train.generative_weight`."
    )
    passes: Literal["auto", "direct", "cached"] = Field(
        default="auto",
        description="cached: forward twice but for the last (GradCache); direct: forward once; auto: "
        "direct where a whole step fits in memory. The bits are the same.",
    )
