"""How many optimiser steps the run takes, and how many make an epoch."""

import math

from loradock.plan.context import Context
from loradock.plan.plan import Decision


def decide(context: Context) -> Decision[int]:
    """max_steps where given, else epochs; the last step of an epoch may hold fewer samples."""
    train = context.config.train
    per_epoch = math.ceil(context.data.samples_per_epoch / train.global_batch)
    if train.max_steps is not None:
        why = f"max_steps; an epoch of {context.data.samples_per_epoch} samples is {per_epoch} steps"
        return Decision(name="steps", value=train.max_steps, why=why)
    steps = max(1, math.ceil(round(train.epochs * per_epoch, 6)))  # 1.1 * 50 is a little over 55 in binary
    why = f"{train.epochs:g} epoch(s) of {context.data.samples_per_epoch} samples, {train.global_batch} a step"
    return Decision(name="steps", value=steps, why=why)
