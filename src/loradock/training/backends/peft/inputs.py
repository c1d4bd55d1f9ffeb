"""Micro-batches as the tensors that a transformers model takes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from loradock.data.collate import MicroBatch, collate
from loradock.training.batches import AsTensors
from loradock.training.job import Job


def model_inputs(job: Job) -> AsTensors:
    """How micro-batches become tensors: tensor cores want lengths in eights."""
    return partial(
        as_tensors,
        pad_token_id=job.tokenizer.pad_token_id,
        pad_to_multiple=8 if job.plan.device.value == "cuda" else 1,
    )


def evaluation_inputs(job: Job) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    """The validation part of this process: model inputs, and how many supervised tokens they hold."""
    made = model_inputs(job)
    for batch in job.evaluation or ():
        tensors, _ = made(batch)
        yield tensors, batch.supervised_tokens


def as_tensors(batch: MicroBatch, **shape: Any) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of a micro-batch that the model itself takes, and their slots."""
    tensors = collate(batch, **shape)
    return {name: tensor for name, tensor in tensors.items() if name != "seq_lengths"}, tensors["input_ids"].numel()
