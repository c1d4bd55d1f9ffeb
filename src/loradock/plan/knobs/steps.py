"""How many optimiser steps the run takes, and how many make an epoch."""

import math

from loradock.plan.context import Context
from loradock.plan.plan import Decision


def per_epoch(context: Context) -> int:
    """Optimiser steps of an epoch."""
    data = context.data
    return data.steps_per_epoch or math.ceil(data.samples_per_epoch / context.config.step_samples)


def decide(context: Context) -> Decision[int]:
    """max_steps where given, else epochs; the last step of an epoch may hold fewer samples."""
    train, data = context.config.train, context.data
    epoch_steps = per_epoch(context)
    together = context.config.objective_spec.documents_together
    size, of_step = f"{data.samples_per_epoch // together} {'pairs' if together > 1 else 'samples'}", train.global_batch
    if data.pairs:
        size, of_step = f"{data.pairs} pairs", min(data.pairs, context.config.embedding.global_batch)
    if train.max_steps is not None:
        why = f"max_steps; an epoch of {size} is {epoch_steps} steps"
        return Decision(name="steps", value=train.max_steps, why=why)
    steps = max(1, math.ceil(round(train.epochs * epoch_steps, 6)))  # 1.1 * 50 is a little over 55 in binary
    return Decision(name="steps", value=steps, why=f"{train.epochs:g} epoch(s) of {size}, {of_step} a step")
