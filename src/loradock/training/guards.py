"""Nothing non-finite is stepped with, and nothing non-finite is committed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from loradock.errors import Diverged

LOWEST_SCALE = 1.0


def check_step(loss: Any, grad_norm: Any, *, step: int, scale: float | None = None) -> None:
    """Before the optimiser step: raise Diverged where the loss or the gradient norm is not finite.

    `loss` and `grad_norm` are scalars (tensors on any device, read back in one transfer, or floats); `step` is the one
    about to be made. With a gradient scaler (float16) an infinite gradient is how it finds its `scale`: the scaler
    skips that step, and only a scale that has already fallen to 1 makes it a divergence.
    """
    import torch

    values = torch.stack([torch.as_tensor(value, device=loss.device).float() for value in (loss, grad_norm)])
    loss_value, norm_value = values.tolist()
    if not math.isfinite(loss_value):
        raise diverged(step, f"the loss is {loss_value}")
    if not math.isfinite(norm_value) and (scale is None or scale <= LOWEST_SCALE):
        raise diverged(step, f"the gradient norm is {norm_value}")


def check_state(tensors: Iterable[Any], *, step: int, what: str) -> None:
    """Before a commit: raise Diverged where one of the tensors is not finite.

    A sum is not finite where an element is not: one pass over the bytes, and one value read back for all of them. Only
    where it is not (huge values may overflow it, too) each element is looked at.
    """
    import torch

    chosen = [tensor.detach() for tensor in tensors]
    by_device: dict[Any, list[Any]] = {}
    for tensor in chosen:
        by_device.setdefault(tensor.device, []).append(tensor.sum(dtype=torch.float32))
    if all(bool(torch.stack(sums).isfinite().all()) for sums in by_device.values()):
        return
    if not all(bool(tensor.isfinite().all()) for tensor in chosen):
        raise diverged(step, f"{what} is not finite")


def diverged(step: int, what: str) -> Diverged:
    """The error of a run whose loss, gradient or weights are no longer finite."""
    return Diverged(
        f"training diverged at step {step}: {what}",
        hint="lower train.learning_rate, lengthen train.warmup, or set model.compute_dtype=bfloat16",
    )
