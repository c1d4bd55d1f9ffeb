"""From the last states to documents' vectors, and back: the final norm, and a product with the pooling's weights.

The weights are a matrix [documents, tokens]: its product costs documents / (2 x parameters / hidden) of the model's,
next to nothing, and has the same bits each time, where a sum by atomic additions has not.
"""

from __future__ import annotations

import torch

from loradock.training.backends.fast.batch import PooledBatch
from loradock.training.backends.fast.families.base import Norm
from loradock.training.backends.fast.kernels import Kernels


class Pooler:
    """The frozen final norm, and pooling in float32."""

    def __init__(self, norm: Norm, *, kernels: Kernels) -> None:
        self.norm = norm
        self.kernels = kernels

    def forward(self, x: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
        """States x [T, hidden] -> vectors, float32 [documents, hidden]."""
        states, _ = self._normed(x)
        return batch.pooling @ states.float()

    def backward(self, gradient: torch.Tensor, x: torch.Tensor, batch: PooledBatch) -> torch.Tensor:
        """From the gradient of the vectors to that of x [T, hidden]."""
        _, rstd = self._normed(x)
        states = (batch.pooling.T @ gradient).to(x.dtype)
        return self.kernels.rms_norm_backward(states, x, rstd, self.norm.weight, offset=self.norm.offset)

    def _normed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kernels.rms_norm(x, self.norm.weight, self.norm.epsilon, offset=self.norm.offset)
