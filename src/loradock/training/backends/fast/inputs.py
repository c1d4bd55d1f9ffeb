"""Micro-batches of the plan as flat tensors, filled up as the device wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from loradock.config.sections.embedding import EmbeddingConfig
from loradock.data.collate import MicroBatch
from loradock.model import reward_head
from loradock.training.backends.fast.batch import (
    FlatBatch,
    PooledBatch,
    common_lengths,
    flatten,
    flatten_pooled,
    folded,
    laid_out,
    rounded_up,
)
from loradock.training.job import Job

CUDA_MULTIPLE = 64
"""On a GPU tokens and supervised positions are filled up to a multiple of this."""
BUCKETS = 8
"""With graphs to a multiple of the budget over this, so that few shapes come up; documents by DOCUMENTS_MULTIPLE."""
DOCUMENTS_MULTIPLE = 32


def flat_inputs(micro_batch: MicroBatch, **shape: Any) -> tuple[FlatBatch, int]:
    """The flat tensors of a micro-batch, and their slots, those of shared tokens as often as documents have them."""
    batch = flatten(micro_batch, **shape)
    return batch, batch.tokens + batch.again.numel()


def pooled_inputs(micro_batch: MicroBatch, *, embedding: EmbeddingConfig, **shape: Any) -> tuple[PooledBatch, int]:
    """The same of documents to embed; their number fills up to nothing."""
    shape = {name: size for name, size in shape.items() if name != "documents_multiple"}
    batch = flatten_pooled(
        micro_batch,
        pooling=embedding.pooling,
        pools_all=embedding.pool_instruction,
        is_causal=embedding.attention == "causal",
        **shape,
    )
    return batch, batch.tokens


def scored_inputs(micro_batch: MicroBatch, **shape: Any) -> tuple[PooledBatch, int]:
    """The same of answers that a head scores, each read where transformers reads it; a common prompt is laid once."""
    shared = common_lengths(micro_batch) if micro_batch.shares_prompts else None
    shape = {"multiple": 1} | {name: size for name, size in shape.items() if name != "documents_multiple"}
    laid = laid_out(micro_batch, **shape, saved=0 if shared is None else int(shared.sum()))
    lengths = micro_batch.lengths.astype(np.int64)
    last = [reward_head.last_place(ids, pad_token_id=shape["pad_token_id"]) for ids, _ in micro_batch.samples()]
    places = np.cumsum(lengths) - lengths + np.array(last, dtype=np.int64)
    if shared is not None:
        laid = folded(laid, lengths, shared)
        places = laid.unfold.numpy()[places]
    pooling = torch.zeros(len(places), laid.tokens)
    pooling[torch.arange(len(places)), torch.from_numpy(places)] = 1
    batch = PooledBatch(**laid.tensors(), documents=laid.documents, pooling=pooling)
    return batch, batch.tokens + batch.again.numel()


def filled_up(job: Job) -> dict[str, Any]:
    """How micro-batches are filled up: not at all on a CPU; on a GPU to even shapes, with graphs to few of them."""
    plan = job.plan
    shape = {
        "pad_token_id": job.tokenizer.pad_token_id,
        "longest": plan.data.limit_tokens,
        "has_dropout": job.config.lora.dropout > 0,
        "has_experts": bool(plan.model.experts),
    }
    if plan.device.value == "cpu":
        return shape
    if not plan.cuda_graphs.value:
        return shape | {"multiple": CUDA_MULTIPLE}
    budget = plan.micro_batch.value * plan.data.limit_tokens
    return shape | {
        "multiple": rounded_up(-(-budget // BUCKETS), CUDA_MULTIPLE),
        "documents_multiple": DOCUMENTS_MULTIPLE,
    }
