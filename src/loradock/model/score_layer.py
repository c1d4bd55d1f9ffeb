"""The layer of a scalar head: it computes in float32, whatever is computed with around it."""

from __future__ import annotations

import torch
from torch.nn.functional import linear


class ScoreLayer(torch.nn.Linear):
    """One row of weights, outside of autocast, which would round scores to its dtype.

    DeepSpeed gathers weights in the dtype of its autocast.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Float32 [documents, hidden] -> [documents, 1]."""
        with torch.autocast(input.device.type, enabled=False):
            return linear(input.float(), self.weight.float())
