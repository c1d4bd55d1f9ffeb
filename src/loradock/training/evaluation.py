"""Evaluation that every engine shares: the loss over all supervised tokens, not a mean of batch means."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from loradock.training.events import EvalResult
from loradock.training.objectives.base import Objective

Batch = TypeVar("Batch")


def evaluate(
    objective: Objective,
    model: Any,
    batches: Iterable[tuple[Batch, int, int]],
    loss_sum: Callable[[Batch], Any],
    *,
    names: Sequence[str],
    step: int,
    poll: Callable[[], None],
) -> EvalResult:
    """Evaluate without gradients and without dropout; the model's mode is put back, no random number is drawn.

    `batches` yields each batch with the place of its set in `names` and its number of supervised tokens; `loss_sum`
    gives the summed negative log-likelihood in nats of one batch. `poll` is called before each batch, and raises to end
    it all. With several ranks each evaluates its share and sums are reduced. No names: one set.
    """
    import torch
    import torch.distributed

    began = time.monotonic()
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    sums = torch.zeros(max(1, len(names)), 2, dtype=torch.float64, device=device)
    try:
        with torch.no_grad():
            for tensors, place, supervised in batches:
                poll()
                sums[place, 0] += loss_sum(tensors).double()
                sums[place, 1] += supervised
    finally:
        model.train(was_training)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    losses = {name: float(loss / count) for name, (loss, count) in zip(names, sums, strict=False) if count}
    total = sums.sum(dim=0)
    loss = float(total[0] / total[1].clamp(min=1))
    return EvalResult(
        step=step,
        loss=loss,
        metrics=objective.metrics(loss),
        losses=losses,
        supervised_tokens=int(total[1]),
        seconds=time.monotonic() - began,
    )
