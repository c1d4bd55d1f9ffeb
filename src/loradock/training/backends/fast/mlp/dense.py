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

    def second(self, halfway: Halfway, batch: Tokens) -> tuple[torch.Tensor, DenseKept]:
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
        dh = self.down.backward_b(dy, saved.h_down)
        dproduct = self.down.backward_input(dy, dh, keys=batch.keys)
        gate, up = saved.gate_up.chunk(2, dim=1)
        product = self.kernels.gate_backward_(dproduct, gate, up, self.activation)
        self.down.backward_a(dh, product, keys=batch.keys)
        del dproduct, product
        dh = self.gate_up.backward_b(saved.gate_up, saved.h)
        if dh is not None:
            self.gate_up.backward_a(dh, normed(), keys=batch.keys)
        return self.gate_up.backward_input(saved.gate_up, dh, keys=batch.keys)

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return self.gate_up, self.down

    def frozen(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return self.linears()
