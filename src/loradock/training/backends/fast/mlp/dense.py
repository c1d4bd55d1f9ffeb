"""A gated MLP: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.linear import LinearGroup

Halfway = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]
"""The adapters' h, gate and up, and what the last product reads."""
OfProduct = tuple[torch.Tensor | None, torch.Tensor]
"""The gradients to the h of down's adapters, and to what down reads."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseKept:
    """What backward needs: gate and up [T, 2I], which it overwrites, and the adapters' h."""

    h: torch.Tensor | None
    gate_up: torch.Tensor
    h_down: torch.Tensor | None


class Dense:
    """See `base.Mlp`."""

    def __init__(self, gate_up: LinearGroup, down: LinearGroup, *, activation: Activation, kernels: Kernels) -> None:
        self.gate_up, self.down = gate_up, down
        self.activation: Activation = activation
        self.kernels = kernels

    def first(self, normed: torch.Tensor, batch: Tokens) -> Halfway:
        """See `base.Mlp`."""
        gate_up, h = self.gate_up.forward(normed, keys=batch.keys)
        gate, up = gate_up.chunk(2, dim=1)
        return h, gate_up, self.kernels.gate(gate, up, self.activation)

    def second(self, halfway: Halfway, batch: Tokens, *, is_again: bool = False) -> tuple[torch.Tensor, DenseKept]:
        """See `base.Mlp`."""
        h, gate_up, product = halfway
        y, h_down = self.down.forward(product, keys=batch.keys)
        return y, DenseKept(h=h, gate_up=gate_up, h_down=h_down)

    def recomputed(self, halfway: Halfway, batch: Tokens) -> DenseKept:
        """See `base.Mlp`."""
        h, gate_up, product = halfway
        return DenseKept(h=h, gate_up=gate_up, h_down=self.down.down(product, keys=batch.keys))

    def backward(
        self, dy: torch.Tensor, saved: DenseKept, normed: Callable[[], torch.Tensor], batch: Tokens
    ) -> torch.Tensor:
        """See `base.Mlp`."""
        return self.rest_backward(self.product_backward(dy, saved, batch), saved, normed, batch)

    def product_backward(self, dy: torch.Tensor, saved: DenseKept, batch: Tokens) -> OfProduct:
        """The gradients of down's B, to its h, and to the gate's product."""
        dh = self.down.backward_b(dy, saved.h_down)
        return dh, self.down.backward_input(dy, dh, keys=batch.keys)

    def rest_backward(
        self, of_product: OfProduct, saved: DenseKept, normed: Callable[[], torch.Tensor], batch: Tokens
    ) -> torch.Tensor:
        """The rest of `backward`; the gradient to the product is overwritten."""
        dh, dproduct = of_product
        gate, up = saved.gate_up.chunk(2, dim=1)
        product = self.kernels.gate_backward_(dproduct, gate, up, self.activation)
        self.down.backward_a(dh, product, keys=batch.keys)
        del dproduct, product, of_product
        dh = self.gate_up.backward_b(saved.gate_up, saved.h)
        if dh is not None:
            self.gate_up.backward_a(dh, normed(), keys=batch.keys)
        return self.gate_up.backward_input(saved.gate_up, dh, keys=batch.keys)

    def along_product(self, dproduct: torch.Tensor, saved: DenseKept) -> torch.Tensor:
        """Of each token the gradient to the gate's product times the product, float32 [T, 1]; nothing is overwritten.

        As down has no bias, it is also the gradient to the output times the output, which is not kept.
        """
        gate, up = saved.gate_up.chunk(2, dim=1)
        product = self.kernels.gate(gate, up, self.activation)
        return product.mul_(dproduct).sum(dim=1, keepdim=True, dtype=torch.float32)

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return self.gate_up, self.down

    def frozen(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return self.linears()
