"""What lies between an expert's two matrices, over rows [P, 2I] that hold what goes into gate and up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.kernels.base import Activation


class Gate(Protocol):
    """One kind."""

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The product [P, I], new."""
        ...

    def backward_(self, dproduct: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """From the gradient to the product, which becomes the product again; `gate_up` becomes its gradient."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Halves:
    """act(gate) * up: the gates of all, then the ups."""

    kernels: Kernels
    activation: Activation

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        gate, up = gate_up.chunk(2, dim=1)
        return self.kernels.gate(gate, up, self.activation)

    def backward_(self, dproduct: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        gate, up = gate_up.chunk(2, dim=1)
        return self.kernels.gate_backward_(dproduct, gate, up, self.activation)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clamped:
    """gpt-oss': see `Kernels.clamped_gate`."""

    kernels: Kernels
    alpha: float
    limit: float

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        return self.kernels.clamped_gate(gate_up, alpha=self.alpha, limit=self.limit)

    def backward_(self, dproduct: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Gate`."""
        return self.kernels.clamped_gate_backward_(dproduct, gate_up, alpha=self.alpha, limit=self.limit)
