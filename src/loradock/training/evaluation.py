"""Evaluation that every backend shares: without gradients and without dropout, and nothing of the run is changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loradock.data.steps import Evaluation
from loradock.training.backends.base import Backend
from loradock.training.events import EvalResult
from loradock.training.objectives.base import Objective


def evaluate(
    objective: Objective, backend: Backend, evaluation: Evaluation, *, model: Any, step: int, poll: Callable[[], None]
) -> EvalResult:
    """What the objective makes of the validation part; the model's mode is put back, no random number is drawn.

    `poll` is called before each pass, and raises to end it all. With several ranks each evaluates its share.
    """
    import torch

    began = time.monotonic()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), backend.evaluating():
            found = objective.evaluate(backend, evaluation, poll=poll)
    finally:
        model.train(was_training)
    return EvalResult(
        step=step,
        loss=found.loss,
        metrics=found.metrics,
        losses=found.losses,
        supervised_tokens=found.supervised_tokens,
        seconds=time.monotonic() - began,
    )
