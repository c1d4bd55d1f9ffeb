"""RMSNorm of whole rows in Triton, and its gradient added to the residual's in the same pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loradock.training.backends.fast.kernels import launch

ELEMENTS_AT_ONCE = 2048  # narrow rows (the heads of a query norm) share a program up to this size


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: bool) -> tuple[Tensor, Tensor]:
    """See `base.Kernels.rms_norm`."""
    rows, width = x.shape
    y = x.new_empty(rows, width)
    rstd = x.new_empty(rows, dtype=torch.float32)
    block, together, warps = _sizes(width)
    grid = ((rows + together - 1) // together,)
    launch.launch(
        rms_norm_kernel, grid, x, x.stride(0), weight, y, rstd, rows, eps,
        width=width, offset=offset, block=block, together=together, num_warps=warps,
    )  # fmt: skip
    return y, rstd


def rms_norm_backward(
    dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, *, offset: bool, into: Tensor | None = None
) -> Tensor:
    """See `base.Kernels.rms_norm_backward`."""
    rows, width = x.shape
    dx = x.new_empty(rows, width) if into is None else into
    block, together, warps = _sizes(width)
    grid = ((rows + together - 1) // together,)
    launch.launch(
        rms_norm_backward_kernel, grid, dy, dy.stride(0), x, x.stride(0), rstd, weight, dx, dx.stride(0), rows,
        width=width, offset=offset, add=into is not None, block=block, together=together, num_warps=warps,
    )  # fmt: skip
    return dx


def _sizes(width: int) -> tuple[int, int, int]:
    """Columns of a block, rows of a program, warps."""
    block = launch.block_of(width)
    together = max(1, ELEMENTS_AT_ONCE // block)
    return block, together, launch.warps_of(block * together)


@triton.jit(do_not_specialize=["rows"])
def rms_norm_kernel(
    x, x_stride, weight, y, rstd, rows, eps,
    width: tl.constexpr, offset: tl.constexpr, block: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    """A program normalises `together` rows of x [rows, width]."""
    row = tl.program_id(0).to(tl.int64) * together + tl.arange(0, together)
    column = tl.arange(0, block)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    value = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / width + eps)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    normalised = value * scale[:, None]
    result = normalised * (1.0 + w) if offset else normalised.to(x.dtype.element_ty).to(tl.float32) * w
    tl.store(y + row[:, None] * width + column[None, :], result.to(y.dtype.element_ty), mask=inside)
    tl.store(rstd + row, scale, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def rms_norm_backward_kernel(
    dy, dy_stride, x, x_stride, rstd, weight, dx, dx_stride, rows,
    width: tl.constexpr, offset: tl.constexpr, add: tl.constexpr, block: tl.constexpr, together: tl.constexpr,
):  # fmt: skip
    """A program makes `together` rows of dx [rows, width], and adds them to what is there with `add`."""
    row = tl.program_id(0).to(tl.int64) * together + tl.arange(0, together)
    column = tl.arange(0, block)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    gradient = tl.load(dy + row[:, None] * dy_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    gradient *= (1.0 + w) if offset else w
    scale = tl.load(rstd + row, mask=row < rows, other=0.0)[:, None]
    normalised = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0).to(tl.float32) * scale
    along = tl.sum(gradient * normalised, axis=1)[:, None] / width
    result = (gradient - normalised * along) * scale
    place = dx + row[:, None] * dx_stride + column[None, :]
    if add:
        result += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, result.to(dx.dtype.element_ty), mask=inside)
