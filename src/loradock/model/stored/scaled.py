"""Weights of 8 bits a number with a scale for each block of rows and columns: value = number x scale."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from loradock.errors import ModelError
from loradock.model.stored.base import Weight

if TYPE_CHECKING:
    import torch

AGAIN = "copy the files again; or give the original 16-bit model directory"
ROWS = 256
"""Rows that are multiplied at a time: more than the weight itself takes no memory to speak of."""
EXPONENT_BIAS = 127
"""Of a scale that is one byte: a power of two (E8M0)."""


@dataclass(frozen=True, kw_only=True)
class Scaled(Weight):
    """Parts are numbers [..., rows, columns] and scales [..., rows / block, columns / block], rounded up.

    `block`: rows and columns that share a scale; the last of them may be cut off by the end of the matrix.
    """

    block: tuple[int, int]

    def dense(self, *parts: torch.Tensor) -> torch.Tensor:
        """Multiplied in float32 and rounded once."""
        import torch

        numbers, scales = parts
        rows, columns = self.shape[-2:]
        height, width = self.block
        grid, full_columns = (ceil(rows / height), ceil(columns / width)), columns // width * width
        factors = multipliers(scales).reshape(-1, *grid)
        flat = numbers.reshape(-1, rows, columns)
        values = torch.empty(flat.shape, dtype=getattr(torch, self.dtype))
        for matrix, factor, value in zip(flat, factors, values, strict=True):
            for first in range(0, rows, ROWS):
                last = min(rows, first + ROWS)
                part, multiplier = matrix[first:last].float(), factor[torch.arange(first, last) // height]
                part[:, :full_columns].unflatten(1, (-1, width)).mul_(multiplier[:, : full_columns // width, None])
                part[:, full_columns:].mul_(multiplier[:, -1:])
                value[first:last] = part
        return values.reshape(self.shape)


def multipliers(scales: torch.Tensor) -> torch.Tensor:
    """Scales in float32, those of one byte too."""
    import torch

    return torch.exp2(scales.float() - EXPONENT_BIAS) if scales.dtype == torch.uint8 else scales.float()


def block_of(
    name: str, shape: tuple[int, ...], scales: tuple[int, ...], *, block: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns that share a scale; `block`: those that config.json says, None for whole matrices or rows.

    ModelError where there are other scales than the weight has blocks, or it is no matrix.
    """
    if len(shape) < 2:
        raise ModelError(f"{name} is {list(shape)}, and no matrix", hint=AGAIN)
    rows, columns = shape[-2:]
    stack = shape[:-2]
    if block is not None and scales == (*stack, ceil(rows / block[0]), ceil(columns / block[1])):
        return block
    if block is None and scales == (*stack, rows, 1):
        return 1, columns
    if (block is None and scales in (stack, (*stack, 1), (*stack, 1, 1))) or (not stack and scales in ((), (1,))):
        return rows, columns
    blocks = f"blocks of {block[0]} x {block[1]}" if block else "one block"
    what = f"{name} is {list(shape)} in {blocks}, and has scales {list(scales)}"
    raise ModelError(what, hint=AGAIN)
