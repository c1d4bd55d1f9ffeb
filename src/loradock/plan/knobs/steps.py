"""How many optimiser steps the run takes, and how many make an epoch."""

import math

from loradock.plan.context import Decision, Question


def decide(question: Question) -> Decision:
    """max_steps where given, else epochs; the last step of an epoch may hold fewer samples."""
    train = question.config.train
    per_epoch = math.ceil(question.data.samples_per_epoch / train.global_batch)
    if train.max_steps is not None:
        why = f"max_steps; an epoch of {question.data.samples_per_epoch} samples is {per_epoch} steps"
        return Decision(name="steps", value=train.max_steps, why=why)
    steps = max(1, math.ceil(round(train.epochs * per_epoch, 6)))  # 1.1 * 50 is a little over 55 in binary
    why = f"{train.epochs:g} epoch(s) of {question.data.samples_per_epoch} samples, {train.global_batch} a step"
    return Decision(name="steps", value=steps, why=why)
