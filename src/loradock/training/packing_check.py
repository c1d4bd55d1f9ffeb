"""The start-up check that packed documents do not see one another, on the real model with its real attention.

Two documents are packed; then the first one's tokens are changed. The second one's logits must not move, and they
must be what they are alone in a row. Some attention implementations ignore positions and leak in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loradock.errors import ModelError
from loradock.training.job import Job

MOVED_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 1e-2}
ALONE_TOLERANCE = {"float32": 1e-3, "bfloat16": 6e-2, "float16": 2e-2}
LONGEST = 512


def check(model: Any, first: Sequence[int], second: Sequence[int], *, dtype: str, vocabulary: int) -> float:
    """Raise ModelError where packing leaks; returns the largest relative change of the second document's logits.

    `first` and `second` are token ids of two documents; each is cut to 512 tokens. `dtype` is the compute dtype,
    which sets the tolerances; they are relative to the largest logit.
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
    scale = packed.abs().max().clamp(min=1e-9)
    change, difference = (float((packed - other).abs().max() / scale) for other in (moved, alone))
    if change > MOVED_TOLERANCE[dtype] or difference > ALONE_TOLERANCE[dtype]:
        raise ModelError(
            "packing leaks across documents with this model's attention: changing one document moved another's "
            f"logits by {change:.2%}, and they differ by {difference:.2%} from those it has alone",
            hint="--set train.packing=false, or another model.attention",
        )
    return change


def of_job(job: Job, model: Any) -> float:
    """`check` with the first and the last row of the job's first micro-batch; `model` computes the job's."""
    rows = [ids for ids, _ in job.steps[0].micro_batches[0].samples()]
    return check(
        model,
        rows[0].tolist(),
        rows[-1].tolist(),
        dtype=job.plan.compute_dtype.value,
        vocabulary=job.plan.model.vocabulary,
    )


def logits(model: Any, documents: list[list[int]]) -> Any:
    """float32 logits [tokens, vocabulary] of the documents packed into one row."""
    import torch

    device = next(model.parameters()).device
    ids = torch.tensor([[token for document in documents for token in document]], device=device)
    positions = torch.tensor([[i for document in documents for i in range(len(document))]], device=device)
    return model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].float()
