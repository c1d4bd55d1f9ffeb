"""The start-up check that packed documents do not see one another, on the real model with its real layers.

Two documents are packed. Then the tokens of one are changed: the logits of the other must not move, and they must be
what they are alone in a row. Some attention implementations ignore positions and leak in silence; recurrent layers
carry their state, and the window of their convolution, from one document into the next.

How far logits move that cannot have seen a change is measured: a causal model never sees the document behind. As a
rule that is not at all, so that the faintest leak shows in 16 bit, too; experts and int8 share sums among tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loradock.training.job import Job, Leaking

MOVED_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 1e-2}
ALONE_TOLERANCE = {"float32": 1e-3, "bfloat16": 6e-2, "float16": 2e-2}
NOISE_TIMES, LEAST_NOISE = 10, 1e-6
"""A change beyond so many times what moves without a leak is one; below the least nothing is lost, in any dtype."""
LONGEST = 512
HINT = "--set train.packing=false, or another model.attention"


def check(model: Any, first: Sequence[int], second: Sequence[int], *, dtype: str, vocabulary: int) -> float:
    """Raise Leaking where packing leaks; returns the largest relative change of the second document's logits.

    `first` and `second` are token ids of two documents; each is cut to 512 tokens. `dtype` is the compute dtype,
    which sets the tolerances; they are relative to the largest logit.
    """
    import torch

    first, second = list(first[:LONGEST]), list(second[:LONGEST])
    other_first, other_second = ([(token + 1) % vocabulary for token in each] for each in (first, second))
    border = len(first)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = logits(model, [first, second])
            scale = packed.abs().max().clamp(min=1e-9)

            def change(other: Any, own: slice) -> float:
                return float((packed[own] - other).abs().max() / scale)

            noise = change(logits(model, [first, other_second])[:border], slice(None, border))
            moved = change(logits(model, [other_first, second])[border:], slice(border, None))
            apart = change(logits(model, [second]), slice(border, None))
    finally:
        model.train(was_training)
    most = min(MOVED_TOLERANCE[dtype], max(LEAST_NOISE, NOISE_TIMES * noise))
    if max(moved, noise) > MOVED_TOLERANCE[dtype] or moved > most or apart > ALONE_TOLERANCE[dtype]:
        raise Leaking(
            "packing leaks across documents in this model: changing one document moved the next one's logits by "
            f"{moved:.2g} of the largest, and the one before it by {noise:.2g}; packed and alone in a row they "
            f"differ by {apart:.2g}",
            hint=HINT,
        )
    return moved


def of_job(job: Job, model: Any) -> float:
    """`check` with the first and the last row of the job's first micro-batch; `model` computes the job's."""
    rows = [ids for ids, _ in job.steps[0].labelled[0].samples()]
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
