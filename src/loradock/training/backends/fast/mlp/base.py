"""What the second half of a layer is to the layer: a function of its normed input, and the way back through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.linear import LinearGroup


class Frozen(Protocol):
    """Frozen matrices with their adapters."""

    def keep(self, dtype: torch.dtype | None) -> None:
        """Keep the matrices dense in this dtype from now on, or not at all."""
        ...

    def bind(self, adapters: FlatAdapters) -> None:
        """From now on use the adapters' buffers as they are now, of another dtype than before."""
        ...


class Mlp(Protocol):
    """One implementation; what it hands over, and keeps from forward to backward, are values that only it reads.

    The forward comes in two parts, so that its input goes before the last product's output comes.
    """

    def first(self, normed: torch.Tensor, batch: Tokens) -> Any:
        """Of the normed input [T, hidden] what the last product reads, and more."""
        ...

    def second(self, halfway: Any, batch: Tokens, *, is_again: bool = False) -> tuple[torch.Tensor, Any]:
        """The output [T, hidden], and what backward needs. `is_again`: of a pass that was counted."""
        ...

    def recomputed(self, halfway: Any, batch: Tokens) -> Any:
        """What backward needs, alone: the last product, which it does not read, is left out."""
        ...

    def backward(self, dy: torch.Tensor, saved: Any, normed: Callable[[], torch.Tensor], batch: Tokens) -> torch.Tensor:
        """The gradient to the normed input [T, hidden], which is made again by `normed` where it is read.

        What was kept is used up; the adapters' gradients go into the flat buffer.
        """
        ...

    def linears(self) -> tuple[LinearGroup, ...]:
        """Its linear layers."""
        ...

    def frozen(self) -> tuple[Frozen, ...]:
        """All of its frozen matrices that may have adapters."""
        ...
