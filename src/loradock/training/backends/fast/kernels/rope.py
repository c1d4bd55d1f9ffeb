"""Rotary position embedding in Triton, in place, by each token's own position."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loradock.training.backends.fast.kernels import launch

HEADS_AT_ONCE = 32


def rope_(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, sign: int = 1, is_interleaved: bool = False
) -> Tensor:
    """See `base.Kernels.rope_`."""
    tokens, heads, _ = x.shape
    half = cos.shape[1] // 2
    block, together = launch.block_of(half), min(HEADS_AT_ONCE, launch.block_of(heads))
    grid = (tokens, (heads + together - 1) // together)
    launch.launch(
        rope_kernel, grid, x, x.stride(0), x.stride(1), cos, cos.stride(0), sin, sin.stride(0), positions,
        heads=heads, half=half, sign=sign, step=2 if is_interleaved else 1, apart=1 if is_interleaved else half,
        block=block, together=together, num_warps=launch.warps_of(block * together),
    )  # fmt: skip
    return x


@triton.jit
def rope_kernel(
    x, token_stride, head_stride, cos, cos_stride, sin, sin_stride, positions,
    heads: tl.constexpr, half: tl.constexpr, sign: tl.constexpr, step: tl.constexpr, apart: tl.constexpr,
    block: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    """A program rotates `together` heads of one token: columns i * step and the one `apart` from it, by its angle i."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * together + tl.arange(0, together)
    column = tl.arange(0, block)
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * cos_stride + column, mask=column < half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + position * sin_stride + column, mask=column < half, other=0.0).to(tl.float32)[None, :] * sign
    inside = (head < heads)[:, None] & (column < half)[None, :]
    first = x + token * token_stride + head[:, None] * head_stride + column[None, :] * step
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(first + apart, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty), mask=inside)
    tl.store(first + apart, (b * c + a * s).to(x.dtype.element_ty), mask=inside)
