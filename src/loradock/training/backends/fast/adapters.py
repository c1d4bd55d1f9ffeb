"""All adapters in flat buffers: the values in float32, a working copy in the compute dtype, and the gradients.

The layers' own parameters become views of the flat values, so everything else (checkpoints, export, generation) sees
them as before. Slots that are laid one after the other can be read as one matrix: that is how the A matrices of layers
with a common input are stacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class FlatAdapters:
    """Values, working copy and gradients of adapters, each a vector of all trainable weights.

    `values` and `gradient` are float32; `working` (the values as the forward reads them) and `fresh` (the gradient of
    one micro-batch) are in the compute dtype.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], *, dtype: torch.dtype) -> None:
        self.parameters = list(parameters)
        self.offsets: dict[int, int] = {}
        total = 0
        for parameter in self.parameters:
            self.offsets[id(parameter)] = total
            total += parameter.numel()
        device = self.parameters[0].device
        self.values = torch.empty(total, dtype=torch.float32, device=device)
        self.gradient = torch.zeros_like(self.values)
        self.compute_in(dtype)
        with torch.no_grad():
            for parameter in self.parameters:
                view = self.view(self.values, [parameter], parameter.shape)
                view.copy_(parameter)
                parameter.data = view

    def view(self, flat: torch.Tensor, parameters: Sequence[Any], shape: Sequence[int]) -> torch.Tensor:
        """The part of `flat` that belongs to `parameters`, which must lie one after the other."""
        first = self.offsets[id(parameters[0])]
        stop = first
        for parameter in parameters:
            if self.offsets[id(parameter)] != stop:
                raise ValueError("the parameters do not lie one after the other")
            stop += parameter.numel()
        return flat[first:stop].view(*shape)

    def compute_in(self, dtype: torch.dtype) -> None:
        """Make `working`, to be refreshed, and `fresh` anew in this dtype."""
        self.fresh = torch.zeros_like(self.values, dtype=dtype)
        self.working = self.values if dtype == torch.float32 else torch.empty_like(self.fresh)

    def refresh(self) -> None:
        """Make the working copy that of the present values; to be called after every change of them."""
        if self.working is not self.values:
            self.working.copy_(self.values)

    @contextmanager
    def standing_at(self, initial: Iterable[tuple[Any, torch.Tensor]]) -> Iterator[None]:
        """Inside, the working copy has these values of parameters, and zero for others: a layer computes its base."""
        before = self.working.clone()
        self.working.zero_()
        for parameter, values in initial:
            self.view(self.working, [parameter], parameter.shape).copy_(values)
        try:
            yield
        finally:
            self.working.copy_(before)

    def accumulate(self) -> None:
        """Add the gradient of the micro-batch that ran to the step's."""
        self.gradient.add_(self.fresh)
