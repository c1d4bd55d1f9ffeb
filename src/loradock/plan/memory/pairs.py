"""Bytes that contrastive training needs besides its passes: vectors, scores, and passes that stay. Pure arithmetic."""

from __future__ import annotations

import math

from loradock.facts import ModelFacts

FLOAT = 4
COPIES = 3
"""Vectors, their unit length and the gradient by them, each float32 [documents, hidden]."""


def vector_bytes(model: ModelFacts, *, queries: int, negatives: int) -> int:
    """Of the vectors of a whole step, on each process, and of its scores, shares and what hides some of them."""
    passages = queries * (1 + negatives)
    return COPIES * FLOAT * (queries + passages) * model.hidden + (3 * FLOAT + 1) * queries * passages


def most_held(free: int, activations: int, *, passes: int) -> int:
    """How many of a step's passes can stay beside the one that is computed; all of them where that fits."""
    if activations * (passes - 1) <= free:
        return passes
    return max(0, min(passes - 1, math.floor(free / activations)))
