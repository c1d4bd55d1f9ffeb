"""The start-up check on the real model: packed losses are those of rows alone, and the gradient is PEFT's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from loradock.data.collate import Array
from loradock.engine import guards
from loradock.engine.base import Job
from loradock.engine.fast.attention.base import Documents
from loradock.engine.fast.batch import FlatBatch
from loradock.engine.fast.model import FastModel
from loradock.errors import ModelError

ROWS = 4
LONGEST = 256
NOISE = 0.01
"""Of what is added to the adapters for the comparison, standard deviation."""
LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}
GRADIENT_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}
"""Of the whole gradient's norm. In bfloat16 two orders of the same sums differ by several per cent."""


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Relative differences: packed losses against those of rows alone, loss and gradient against the reference path."""

    packed: float
    loss: float
    gradient: float

    def __str__(self) -> str:
        return (
            f"packed loss within {self.packed:.1e} of the rows alone; "
            f"loss within {self.loss:.1e} and gradient within {self.gradient:.1e} of PEFT's"
        )


def check(model: FastModel, job: Job) -> Differences:
    """Compare on the first rows of the run, cut to 256 tokens, every token of them learned, without dropout.

    LoRA begins with B at zero, where A gets no gradient and adds nothing: small values stand in the adapters meanwhile.
    The run's own random state is not drawn from. Raises ModelError where a difference is larger than the compute dtype
    explains, or a gradient is not finite; Diverged where PEFT's own loss is not finite.
    """
    rows = [ids[:LONGEST] for ids in first_rows(job)]
    adapters = model.adapters
    values = adapters.values.clone()
    generator = torch.Generator(values.device).manual_seed(0)
    try:
        adapters.values.add_(torch.randn(values.shape, generator=generator, device=values.device), alpha=NOISE)
        adapters.refresh()
        found = compared(model, job, rows)
    finally:
        adapters.values.copy_(values)
        adapters.refresh()
    most, most_gradient = LOSS_TOLERANCE[model.dtype], GRADIENT_TOLERANCE[model.dtype]
    if not (found.packed <= most and found.loss <= most and found.gradient <= most_gradient):
        raise ModelError(f"the fast engine does not compute what PEFT computes: {found}", hint="--set engine=trl")
    return found


def first_rows(job: Job) -> list[Array]:
    """Token ids of the first rows that this process sees, of two tokens at least: up to ROWS of them."""
    found: list[Array] = []
    for index in range(min(ROWS, len(job.steps))):
        for batch in job.steps[index].micro_batches:
            for row, length in zip(batch.rows, batch.lengths, strict=True):
                ids, _ = batch.prepared.row(int(row), length=int(length))
                found += [ids] if len(ids) > 1 else []
        if len(found) >= ROWS:
            break
    return found[:ROWS]


def compared(model: FastModel, job: Job, rows: list[Array]) -> Differences:
    """How far the fast engine is from itself on other batches, and from the reference on the first row."""
    losses = [float(model.loss(learned(model, [row]))) for row in rows]
    together = float(model.loss(learned(model, rows)))
    model.adapters.gradient.zero_()
    model.adapters.fresh.zero_()  # what a backward leaves out must not be there from before
    fast_loss = float(model.loss_and_gradients(learned(model, rows[:1]), scale=1.0))
    fast_gradient = model.adapters.gradient.clone()
    model.adapters.gradient.zero_()
    loss, gradient = by_reference(model, job, rows[0])
    if not math.isfinite(loss):
        raise guards.diverged((job.resume.step if job.resume else 0) + 1, f"the loss of its first rows is {loss}")
    difference = fast_gradient - gradient
    return Differences(
        packed=relative(together - sum(losses), sum(losses)),
        loss=relative(fast_loss - loss, loss),
        gradient=max(
            relative(float(difference[part].norm()), float(gradient[part].norm())) for part in by_kind(model, job)
        ),
    )


def by_kind(model: FastModel, job: Job) -> list[torch.Tensor]:
    """Where A lies in the flat buffer, and where B: their gradients are of different size."""
    names = {id(parameter): name for name, parameter in job.model.named_parameters()}
    is_a = torch.cat(
        [
            torch.full((each.numel(),), "lora_A" in names[id(each)], device=model.adapters.values.device)
            for each in model.adapters.parameters
        ]
    )
    return [is_a, ~is_a]


def relative(difference: float, whole: float) -> float:
    """The difference as a share of the whole."""
    return abs(difference) / max(abs(whole), 1e-6)


def learned(model: FastModel, rows: list[Array]) -> FlatBatch:
    """The rows end to end on the model's device, every token learned that follows another."""
    bounds = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    ids = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    spans = list(pairwise(bounds))
    places = torch.from_numpy(np.concatenate([np.arange(start, end - 1) for start, end in spans]).astype(np.int64))
    batch = FlatBatch(
        ids=ids,
        positions=torch.from_numpy(np.concatenate([np.arange(end - start) for start, end in spans]).astype(np.int32)),
        documents=Documents(
            bounds=tuple(int(bound) for bound in bounds),
            cu_seqlens=torch.from_numpy(bounds),
            longest=max(len(row) for row in rows),
        ),
        rows=places,
        slots=places,
        targets=ids[places + 1],
        weights=torch.ones(len(places)),
    )
    return batch.to(model.adapters.values.device)


def by_reference(model: FastModel, job: Job, row: Array) -> tuple[float, torch.Tensor]:
    """Loss and flat gradient of the PeftModel itself, by autograd, in evaluation mode."""
    peft: Any = job.model
    tokens = torch.tensor(row, dtype=torch.int64, device=model.adapters.values.device)
    was_training = peft.training
    peft.eval()
    try:
        logits = peft(input_ids=tokens[None], use_cache=False).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum")
        loss.backward()
    finally:
        peft.train(was_training)
    parts = [each.grad if each.grad is not None else torch.zeros_like(each) for each in model.adapters.parameters]
    for each in model.adapters.parameters:
        each.grad = None
    return loss.item(), torch.cat([part.float().flatten() for part in parts])
