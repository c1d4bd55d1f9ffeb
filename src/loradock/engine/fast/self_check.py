"""The start-up check on the real model: packed losses are those of rows alone, and the gradient is PEFT's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from loradock.data.collate import MicroBatch
from loradock.engine import guards
from loradock.engine.base import Job
from loradock.engine.fast.batch import flatten
from loradock.engine.fast.model import FastModel
from loradock.errors import ModelError

ROWS = 4
LONGEST = 256
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
    """Compare on the first rows of the run, cut to 256 tokens, without dropout; draws no random number.

    Raises ModelError where a difference is larger than the compute dtype explains, or a gradient is not finite;
    Diverged where PEFT's own loss is not finite.
    """
    first = job.steps[0].micro_batches[0]
    rows, lengths = first.rows[:ROWS], first.lengths[:ROWS].clip(max=LONGEST)
    batch = replace(first, rows=rows, lengths=lengths, is_idle=False)  # a process without a share checks itself, too
    alone = [
        replace(batch, rows=batch.rows[i : i + 1], lengths=batch.lengths[i : i + 1]) for i in range(len(batch.rows))
    ]
    together = loss_of(model, job, batch)
    losses = [loss_of(model, job, each) for each in alone]
    learned = next((each for each, loss in zip(alone, losses, strict=True) if loss), alone[0])
    fast_loss, fast_gradient = by_fast_engine(model, job, learned)
    loss, gradient = by_reference(model, job, learned)
    if not math.isfinite(loss):
        raise guards.diverged((job.resume.step if job.resume else 0) + 1, f"the loss of its first rows is {loss}")
    found = Differences(
        packed=relative(together - sum(losses), sum(losses)),
        loss=relative(fast_loss - loss, loss),
        gradient=relative(float((fast_gradient - gradient).norm()), float(gradient.norm())),
    )
    most, most_gradient = LOSS_TOLERANCE[model.dtype], GRADIENT_TOLERANCE[model.dtype]
    if not (found.packed <= most and found.loss <= most and found.gradient <= most_gradient):
        raise ModelError(f"the fast engine does not compute what PEFT computes: {found}", hint="--set engine=trl")
    return found


def relative(difference: float, whole: float) -> float:
    """The difference as a share of the whole."""
    return abs(difference) / max(abs(whole), 1e-6)


def loss_of(model: FastModel, job: Job, batch: MicroBatch) -> float:
    """The summed loss of a micro-batch, in nats."""
    return float(model.loss(flat(model, job, batch)))


def by_fast_engine(model: FastModel, job: Job, batch: MicroBatch) -> tuple[float, torch.Tensor]:
    """Loss and flat gradient; the buffer is left as it was, zero."""
    model.adapters.gradient.zero_()
    loss = model.loss_and_gradients(flat(model, job, batch), scale=1.0)
    gradient = model.adapters.gradient.clone()
    model.adapters.gradient.zero_()
    return float(loss), gradient


def by_reference(model: FastModel, job: Job, batch: MicroBatch) -> tuple[float, torch.Tensor]:
    """Loss and flat gradient of the PeftModel itself, by autograd, in evaluation mode."""
    peft: Any = job.model
    ids, mask = batch.prepared.row(int(batch.rows[0]), length=int(batch.lengths[0]))
    device = model.adapters.values.device
    tokens = torch.tensor(ids, dtype=torch.int64, device=device)
    learned = torch.tensor(mask[1:], device=device)
    was_training = peft.training
    peft.eval()
    try:
        logits = peft(input_ids=tokens[None], use_cache=False).logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits[learned], tokens[1:][learned], reduction="sum")
        loss.backward()
    finally:
        peft.train(was_training)
    parts = [each.grad if each.grad is not None else torch.zeros_like(each) for each in model.adapters.parameters]
    for each in model.adapters.parameters:
        each.grad = None
    return loss.item(), torch.cat([part.float().flatten() for part in parts])


def flat(model: FastModel, job: Job, batch: MicroBatch) -> Any:
    """The batch on the model's device."""
    tensors = flatten(batch, pad_token_id=job.tokenizer.pad_token_id, longest=job.plan.data.limit_tokens)
    return tensors.to(model.adapters.values.device)
