"""MXFP4 (OCP Microscaling Formats 1.0), in which gpt-oss publishes its experts: blocks of 32 numbers of 4 bits.

A weight `NAME` [experts, columns, rows] lies as `NAME_blocks`, uint8 [experts, rows, columns / 32, 16], of whose bytes
the lower half comes first, and `NAME_scales`, uint8 [experts, rows, columns / 32], powers of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loradock.model.stored.base import Contents, Format, Header, Weight

if TYPE_CHECKING:
    import torch

BLOCKS, SCALES = "_blocks", "_scales"
WIDTH = 32
CODE_BOOK = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
"""Of a scale's exponent."""


class Blocks(Weight):
    """Experts in MXFP4."""

    def dense(self, *parts: torch.Tensor) -> torch.Tensor:
        """[experts, columns, rows]."""
        return dense(*parts)


class Mxfp4(Format):
    """Experts of gpt-oss; bfloat16 holds each of their numbers exactly, whatever dtype the model has."""

    method, title, python = "mxfp4", "MXFP4", "Mxfp4Config(dequantize=True)"

    def find(self, tensors: Mapping[str, Header], settings: Mapping[str, Any], *, dtype: str) -> Contents:
        """Blocks that have their scales; without them a weight is missing."""
        del settings, dtype
        weights: dict[str, Weight] = {}
        for key, entry in tensors.items():
            name = key.removesuffix(BLOCKS)
            scales = tensors.get(f"{name}{SCALES}")
            if name != key and len(entry.shape) == 4 and scales is not None and scales.shape == entry.shape[:3]:
                experts, rows, groups, _ = entry.shape
                parts = (key, f"{name}{SCALES}")
                weights[name] = Blocks(shape=(experts, groups * WIDTH, rows), dtype="bfloat16", parts=parts)
        return Contents(weights=weights)


def dense(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight [experts, columns, rows] in bfloat16, made expert by expert."""
    import torch

    experts, rows, groups, _ = blocks.shape
    book = torch.tensor(CODE_BOOK, dtype=torch.bfloat16)
    values = torch.empty((experts, groups * WIDTH, rows), dtype=torch.bfloat16)
    for value, packed, exponents in zip(values, blocks, scales, strict=True):
        numbers = torch.stack([packed & 15, packed >> 4], dim=-1).long()
        value.copy_(torch.ldexp(book[numbers].flatten(-2), (exponents.int() - BIAS).unsqueeze(-1)).flatten(-2).T)
    return values
