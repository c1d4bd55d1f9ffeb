"""Experts in NF4 as one column of numbers, which can be cut among processes at any row.

All that a matrix of experts is made of lies in it, one part after the other: packed weights and scales. Gathered, it is
read where it lies. FSDP takes parameters of a floating-point dtype only, so that the bytes are numbers of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from loradock.model.experts import layout
from loradock.model.experts.layout import COLUMNS
from loradock.model.experts.storage import NF4Experts

ALIGNMENT = 16
"""Bytes to whose multiple a part begins, so that kernels read any dtype there."""
CUT = ("packed", "scales", "outer", "offset")
"""Parts that lie in a column; the values of scales' codes are the same for all experts, and whole on each process."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where a part of the weights lies in the column, in bytes."""

    first: int
    shape: torch.Size
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Of the part, without what fills it up to the next."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Column:
    """How weights `shape` [experts, rows, columns], `dtype` that of their products, lie in `numbers` of a dtype.

    `code`: see `NF4Experts`. `comes_again`: a backward pass finds the column in other memory than the forward pass did,
    as DeepSpeed gathers it, so that nothing of it may be kept from the one to the other.
    """

    shape: torch.Size
    dtype: torch.dtype
    spans: Mapping[str, Span]
    code: torch.Tensor | None
    numbers: int
    storage: torch.dtype
    comes_again: bool = False

    @classmethod
    def of(cls, weights: NF4Experts, *, storage: torch.dtype) -> Self:
        """That of weights in memory."""
        spans: dict[str, Span] = {}
        end = 0
        for name in CUT:
            part = weights.parts[name]
            if part is not None:
                spans[name] = Span(first=end, shape=part.shape, dtype=part.dtype)
                end += math.ceil(spans[name].size_bytes / ALIGNMENT) * ALIGNMENT
        return cls(
            shape=weights.shape,
            dtype=weights.dtype,
            spans=spans,
            code=weights.code,
            numbers=end // storage.itemsize,
            storage=storage,
        )

    def filled(self, weights: NF4Experts) -> torch.Tensor:
        """A copy of the weights as a column [numbers, 1]."""
        flat = torch.zeros(self.numbers * self.storage.itemsize, dtype=torch.uint8, device=weights.packed.device)
        for name, span in self.spans.items():
            part: Any = weights.parts[name]
            flat[span.first : span.first + span.size_bytes] = part.contiguous().view(-1).view(torch.uint8)
        return flat.view(self.storage).unsqueeze(-1)

    def weights(self, column: torch.Tensor) -> NF4Experts:
        """The weights that a whole column is: they share its memory."""
        flat = column.detach().squeeze(-1).view(torch.uint8)
        parts: dict[str, torch.Tensor | None] = dict.fromkeys(CUT)
        for name, span in self.spans.items():
            part = flat[span.first : span.first + span.size_bytes]
            parts[name] = part.view(span.dtype).view(span.shape)
        return NF4Experts.of_parts({**parts, "code": self.code}, shape=self.shape, dtype=self.dtype)

    def stand_in(self, device: torch.device) -> NF4Experts:
        """Weights of the same shape and dtype whose parts take no memory."""
        parts: dict[str, torch.Tensor | None] = dict.fromkeys(CUT)
        for name, span in self.spans.items():
            parts[name] = torch.zeros((), dtype=span.dtype, device=device).expand(span.shape)
        return NF4Experts.of_parts({**parts, "code": self.code}, shape=self.shape, dtype=self.dtype)


def put(module: Any, key: str, column: Column) -> None:
    """Have a parameter of a module of experts be read as such a column from now on."""
    object.__setattr__(module, COLUMNS, {**of(module), key: column})


def of(module: Any) -> Mapping[str, Column]:
    """How the cut parameters of a module lie, by name; none of one whose experts are whole."""
    return getattr(module, COLUMNS, {})


def lay_out_whole(model: Any, *, storage: torch.dtype) -> None:
    """Put columns in the place of a whole model's experts in NF4: plain tensors, which can be sent."""
    for matrices in list(layout.matrices(model)):
        weights = matrices.parameter
        if isinstance(weights, NF4Experts):
            lies = Column.of(weights, storage=storage)
            put(matrices.module, matrices.key, lies)
            filled = torch.nn.Parameter(lies.filled(weights), requires_grad=False)
            matrices.module._parameters[matrices.key] = filled


def comes_again(module: Any, key: str) -> bool:
    """Whether a backward pass is to read this parameter again."""
    column = of(module).get(key)
    return column is not None and column.comes_again


def weights_of(module: Any, key: str) -> torch.Tensor:
    """A matrix of all experts [experts, rows, columns] of a module, of a gathered column where it is one."""
    parameter, column = getattr(module, key), of(module).get(key)
    return parameter if column is None else column.weights(parameter)
