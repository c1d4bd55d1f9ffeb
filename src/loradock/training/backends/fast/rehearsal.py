"""The largest pass that the plan allows, made once before the first step: a GPU that is too small says so at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from loradock.plan.context import Decision
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.model import FastModel
from loradock.training.backends.fast.self_check import learned
from loradock.training.job import Job

NOT_ALLOCATED = ("runtime", "fragmentation")
"""Expected of the GPU, but by no tensor."""
NOISE_BYTES = 256 << 20
"""A difference below this is cuBLAS' workspace and small tensors: no share of it says anything."""


def found(model: FastModel, job: Job) -> Decision:
    """Make the pass on the GPU, and say what it took there, in GiB, and what was expected.

    torch.OutOfMemoryError where it does not fit.
    """
    rehearse(model, job)
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return compared(peak, job.plan.memory_bytes)


def compared(peak: int, parts: Mapping[str, int]) -> Decision:
    """What the pass took beside what the plan expected of its tensors; in per cent where that means something."""
    expected = parts["total"] - sum(parts.get(part, 0) for part in NOT_ALLOCATED)
    share = f" ({peak / expected - 1:+.0%})" if abs(peak - expected) > NOISE_BYTES else ""
    why = f"the plan, as first made, expected {expected / 2**30:.1f} GiB{share}; every token supervised"
    return Decision(name="largest pass", value=f"{peak / 2**30:.1f} GiB", why=why)


def rehearse(model: FastModel, job: Job) -> None:
    """Forward and backward of the largest batch, with dropout where the run has it. The next step clears gradients."""
    batch = largest(model, job)
    if job.config.lora.dropout:
        batch = replace(batch, keys=torch.arange(batch.tokens, device=batch.ids.device))
    model.loss_and_gradients(batch, scale=0.0)


def largest(model: FastModel, job: Job) -> FlatBatch:
    """As many tokens as a micro-batch may hold, in the longest documents that the data has, all of them supervised."""
    data, rows = job.plan.data, job.plan.micro_batch.value
    longest = max(2, data.longest_tokens)
    budget = rows * (data.limit_tokens if job.plan.packing.value else longest)
    lengths = [longest] * (budget // longest) + [budget % longest] * (budget % longest > 0)
    row = np.full(longest, job.tokenizer.pad_token_id, dtype=np.int64)
    return learned(model, [row[:length] for length in lengths])
