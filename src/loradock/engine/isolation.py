"""The start-up check that packed documents do not see one another, on the real model with its real attention.

Two documents are packed; then the first one's tokens are changed. The second one's logits must not move, and its
loss must be what it is alone in a row. Some attention implementations ignore positions and leak in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loradock.errors import ModelError

LOSS_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
LOGIT_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 1e-2}
LONGEST = 512


def check(model: Any, first: Sequence[int], second: Sequence[int], *, dtype: str, vocabulary: int) -> float:
    """Raise ModelError where packing leaks; returns the largest relative change of the second document's logits.

    `first` and `second` are token ids of two documents; each is cut to 512 tokens. `dtype` is the compute dtype,
    which sets the tolerances: relative to the largest logit, and in nats for the loss.
    """
    import torch

    first, second = list(first[:LONGEST]), list(second[:LONGEST])
    changed = [(token + 1) % vocabulary for token in first]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = logits(model, [first, second])[len(first) :]
            moved = logits(model, [changed, second])[len(first) :]
            alone = logits(model, [second])
    finally:
        model.train(was_training)
    change = float((packed - moved).abs().max() / packed.abs().max().clamp(min=1e-9))
    losses = [mean_loss(rows, second) for rows in (packed, alone)]
    if change > LOGIT_TOLERANCE[dtype] or abs(losses[0] - losses[1]) > LOSS_TOLERANCE[dtype] * max(1.0, losses[1]):
        raise ModelError(
            "packing leaks across documents with this model's attention: changing one document moved another's "
            f"logits by {change:.2%}, its loss is {losses[0]:.4f} packed and {losses[1]:.4f} alone",
            hint="--set train.packing=false, or another model.attention",
        )
    return change


def logits(model: Any, documents: list[list[int]]) -> Any:
    """float32 logits [tokens, vocabulary] of the documents packed into one row."""
    import torch

    device = next(model.parameters()).device
    ids = torch.tensor([[token for document in documents for token in document]], device=device)
    positions = torch.tensor([[i for document in documents for i in range(len(document))]], device=device)
    return model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].float()


def mean_loss(rows: Any, document: list[int]) -> float:
    """Mean next-token loss of a document in nats."""
    import torch

    labels = torch.tensor(document[1:], device=rows.device)
    return float(torch.nn.functional.cross_entropy(rows[:-1], labels))
