"""MXFP4 (OCP Microscaling Formats 1.0), in which gpt-oss publishes its experts: blocks of 32 numbers of 4 bits.

A weight `NAME` [experts, columns, rows] lies as `NAME_blocks`, uint8 [experts, rows, columns / 32, 16], of whose bytes
the lower half comes first, and `NAME_scales`, uint8 [experts, rows, columns / 32], powers of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCKS, SCALES = "_blocks", "_scales"
WIDTH = 32
CODE_BOOK = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
"""Of a scale's exponent."""


def weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """{weight: its shape} of all that tensors of these shapes hold so."""
    return {
        name.removesuffix(BLOCKS): (shape[0], shape[2] * WIDTH, shape[1])
        for name, shape in shapes.items()
        if name.endswith(BLOCKS) and len(shape) == 4 and shapes.get(f"{name.removesuffix(BLOCKS)}{SCALES}") == shape[:3]
    }


def dense_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Tensors by name as a model has them."""
    of_weights = weights(shapes)
    parts = {f"{name}{part}" for name in of_weights for part in (BLOCKS, SCALES)}
    return {name: shape for name, shape in shapes.items() if name not in parts} | of_weights


def dense(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight [experts, columns, rows] in bfloat16, which holds each of its numbers exactly."""
    import torch

    book = torch.tensor(CODE_BOOK, dtype=torch.bfloat16)
    numbers = torch.stack([blocks & 15, blocks >> 4], dim=-1).long()
    values = torch.ldexp(book[numbers].flatten(-2), (scales.int() - BIAS).unsqueeze(-1)).to(torch.bfloat16)
    return values.flatten(-2).transpose(1, 2).contiguous()
