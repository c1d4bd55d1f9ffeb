"""What follows both halves of a layer in Gemma 4's small models: a gate over what it reads of the token itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.linear import LinearGroup

GatedKept = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]
"""What backward needs: the gate's h, what goes into its activation [T, size], and the output's h."""


class GatedInput:
    """y = (act(x G^T) * input) P^T, of hidden states x [T, hidden] and the token's input [T, size] of this layer."""

    def __init__(
        self, gate: LinearGroup, output: LinearGroup, *, activation: Activation, kernels: Kernels, index: int
    ) -> None:
        self.gate, self.output = gate, output
        self.activation: Activation = activation
        self.kernels, self.index = kernels, index

    def forward(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, GatedKept]:
        """y [T, hidden], and what backward needs."""
        gate, h = self.gate.forward(x, keys=batch.keys)
        product = self.kernels.gate(gate, batch.carried.inputs_of(self.index), self.activation)
        y, h_output = self.output.forward(product, keys=batch.keys)
        return y, (h, gate, h_output)

    def backward(
        self, dy: torch.Tensor, saved: GatedKept, x: Callable[[], torch.Tensor], batch: Tokens
    ) -> torch.Tensor:
        """The gradient to x [T, hidden]; the token's input becomes the gradient to it."""
        h, gate, h_output = saved
        dh = self.output.backward_b(dy, h_output)
        dproduct = self.output.backward_input(dy, dh, keys=batch.keys)
        product = self.kernels.gate_backward_(dproduct, gate, batch.carried.inputs_of(self.index), self.activation)
        self.output.backward_a(dh, product, keys=batch.keys)
        dh = self.gate.backward_b(gate, h)
        if dh is not None:
            self.gate.backward_a(dh, x(), keys=batch.keys)
        return self.gate.backward_input(gate, dh, keys=batch.keys)

    def linears(self) -> tuple[LinearGroup, ...]:
        """Its linear layers."""
        return self.gate, self.output
