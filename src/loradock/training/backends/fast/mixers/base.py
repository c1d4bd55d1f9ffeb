"""What the first half of a layer is to the layer: a function of its normed input, and the way back through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.linear import LinearGroup


class Mixer(Protocol):
    """One implementation; what it keeps from forward to backward is a value that only it reads."""

    def forward(self, normed: torch.Tensor, batch: Tokens, *, is_last: bool = False) -> tuple[torch.Tensor, Any]:
        """Of the normed input [T, hidden] the output [T, hidden], and what backward needs.

        `is_last`: backward comes before the next forward of any layer's, so that much may be kept.
        """
        ...

    def backward(
        self,
        dy: torch.Tensor,
        saved: Any,
        normed: Callable[[], torch.Tensor],
        batch: Tokens,
        *,
        is_lowest: bool,
    ) -> torch.Tensor | None:
        """The gradient to the normed input [T, hidden], which is made again by `normed` where it is read.

        None where `is_lowest`: nothing below is trained. The adapters' gradients go into the flat buffer.
        """
        ...

    def linears(self) -> tuple[LinearGroup, ...]:
        """Its linear layers."""
        ...
