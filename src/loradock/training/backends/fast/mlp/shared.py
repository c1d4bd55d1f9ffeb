"""The expert of a mixture that every token goes through: a gated MLP, times the sigmoid of a gate where it has one.

    y = s(x) dense(x),   s(x) = sigmoid(x g^T)

The gradient to the gate's logit is (1 - s) s dy . dense(x). What dense(x) was is not kept: as down has no bias, s dy .
dense(x) equals the gradient to down's input times this input, which are there in backward anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import Unfit
from loradock.training.backends.fast.linear import LinearGroup
from loradock.training.backends.fast.mlp.dense import Dense, DenseKept
from loradock.training.backends.fast.mlp.dense import Halfway as DenseHalfway


@dataclass(frozen=True, kw_only=True, eq=False)
class Gate:
    """What the gate said: `share` float32 [T, 1] by the sigmoid, and its adapter's h."""

    share: torch.Tensor
    h: torch.Tensor | None


Halfway = tuple[DenseHalfway, Gate | None]
Kept = tuple[DenseKept, Gate | None]


class Shared:
    """See `base.Mlp`. Unfit for a gate around an MLP whose last layer has a bias."""

    def __init__(self, dense: Dense, gate: LinearGroup | None) -> None:
        if gate is not None and dense.down.bias is not None:
            raise Unfit("its shared expert has a gate, and a bias in its last layer")
        self.dense, self.gate = dense, gate

    def first(self, normed: torch.Tensor, batch: Tokens) -> Halfway:
        """See `base.Mlp`."""
        halfway = self.dense.first(normed, batch)
        if self.gate is None:
            return halfway, None
        logits, h = self.gate.forward(normed, keys=batch.keys)
        return halfway, Gate(share=torch.sigmoid(logits.float()), h=h)

    def second(self, halfway: Halfway, batch: Tokens) -> tuple[torch.Tensor, Kept]:
        """See `base.Mlp`."""
        of_dense, gate = halfway
        y, kept = self.dense.second(of_dense, batch)
        return y if gate is None else y.mul_(gate.share.to(y.dtype)), (kept, gate)

    def recomputed(self, halfway: Halfway, batch: Tokens) -> Kept:
        """See `base.Mlp`."""
        of_dense, gate = halfway
        return self.dense.recomputed(of_dense, batch), gate

    def backward(
        self, dy: torch.Tensor, saved: Kept, normed: Callable[[], torch.Tensor], batch: Tokens
    ) -> torch.Tensor:
        """See `base.Mlp`."""
        kept, gate = saved
        if self.gate is None or gate is None:
            return self.dense.backward(dy, kept, normed, batch)
        dh, dproduct = self.dense.product_backward(dy * gate.share.to(dy.dtype), kept, batch)
        dlogits = (self.dense.along_product(dproduct, kept) * (1 - gate.share)).to(dy.dtype)
        dx = self.dense.rest_backward((dh, dproduct), kept, normed, batch)
        dh = self.gate.backward_b(dlogits, gate.h)
        if dh is not None:
            self.gate.backward_a(dh, normed(), keys=batch.keys)
        return dx.add_(self.gate.backward_input(dlogits, dh, keys=batch.keys))

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return (*self.dense.linears(), *([] if self.gate is None else [self.gate]))
