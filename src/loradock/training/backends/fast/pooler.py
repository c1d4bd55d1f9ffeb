"""From the last states to documents' vectors or scores, and back: the final norm, pooling, and perhaps a scalar head.

The weights are a matrix [documents, tokens]: its product costs documents / (2 x parameters / hidden) of the model's,
next to nothing, and has the same bits each time, where a sum by atomic additions has not. A score is a vector's product
with the head's one row: s = v w', dv = ds w, dw = ds' v.
"""

from __future__ import annotations

from typing import Any

import torch

from loradock.model import reward_head
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.batch import PooledBatch
from loradock.training.backends.fast.families.parts import Norm
from loradock.training.backends.fast.kernels import Kernels


def head_of(model: Any) -> torch.nn.Parameter | None:
    """The trained row of weights of a reward model, [1, hidden]; None of a model without a head."""
    head = reward_head.of(model)
    return None if head is None else next(each for each in head.parameters() if each.requires_grad)


class ScalarHead:
    """The head in float32, as the values are held: its gradient goes into the adapters' buffer."""

    def __init__(self, parameter: torch.nn.Parameter, adapters: FlatAdapters) -> None:
        self.parameter, self.adapters = parameter, adapters

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors [documents, hidden] -> scores [documents, 1]."""
        return vectors @ self._view(self.adapters.values).t()

    def backward(self, gradient: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Add the head's gradient, from that of the scores; the vectors' [documents, hidden]."""
        self._view(self.adapters.gradient).add_(gradient.t() @ vectors)
        return gradient @ self._view(self.adapters.values)

    def _view(self, flat: torch.Tensor) -> torch.Tensor:
        return self.adapters.view(flat, [self.parameter], self.parameter.shape)


class Pooler:
    """The frozen final norm, pooling in float32, and the head of a model that has one."""

    def __init__(self, norm: Norm, *, kernels: Kernels, head: ScalarHead | None = None) -> None:
        self.norm = norm
        self.kernels = kernels
        self.head = head

    def forward(self, x: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
        """States x [T, hidden] -> vectors, float32 [documents, hidden]; with a head scores [documents, 1]."""
        states, _ = self._normed(x)
        vectors = batch.pooling @ states.float()
        return self.head.forward(vectors) if self.head else vectors

    def backward(self, gradient: torch.Tensor, x: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
        """From the gradient of what `forward` gave to that of x [T, hidden]."""
        normed, rstd = self._normed(x)
        if self.head:
            gradient = self.head.backward(gradient, batch.pooling @ normed.float())
        states = (batch.pooling.T @ gradient).to(x.dtype)
        return self.kernels.rms_norm_backward(states, x, rstd, self.norm.weight, offset=self.norm.offset)

    def _normed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kernels.rms_norm(x, self.norm.weight, self.norm.epsilon, offset=self.norm.offset)
