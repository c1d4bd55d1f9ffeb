"""The gate of an MLP (SwiGLU, GeGLU; Shazeer 2020, arXiv 2002.05202) in Triton, and its backward in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loradock.training.backends.fast.kernels import launch
from loradock.training.backends.fast.kernels.base import Activation

BLOCK = 1024
WARPS = 4  # 8 elements a thread: one load of 16 bytes in 16-bit from each of three tensors


def gate(g: Tensor, u: Tensor, act: Activation) -> Tensor:
    """See `base.Kernels.gate`."""
    rows, width = g.shape
    a = g.new_empty(rows, width)
    grid = (rows, (width + BLOCK - 1) // BLOCK)
    launch.launch(
        gate_kernel, grid, g, g.stride(0), u, u.stride(0), a, width=width, act=act, block=BLOCK, num_warps=WARPS
    )
    return a


def gate_backward_(da: Tensor, g: Tensor, u: Tensor, act: Activation) -> Tensor:
    """See `base.Kernels.gate_backward_`."""
    rows, width = g.shape
    grid = (rows, (width + BLOCK - 1) // BLOCK)
    launch.launch(
        gate_backward_kernel, grid, da, da.stride(0), g, g.stride(0), u, u.stride(0),
        width=width, act=act, block=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return da


def clamped_gate(gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """See `base.Kernels.clamped_gate`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    a = gate_up.new_empty(rows, width)
    grid = (rows, (width + BLOCK - 1) // BLOCK)
    launch.launch(
        clamped_gate_kernel, grid, gate_up, gate_up.stride(0), a, alpha, limit,
        width=width, block=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return a


def clamped_gate_backward_(da: Tensor, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """See `base.Kernels.clamped_gate_backward_`."""
    rows, width = da.shape
    grid = (rows, (width + BLOCK - 1) // BLOCK)
    launch.launch(
        clamped_gate_backward_kernel, grid, da, da.stride(0), gate_up, gate_up.stride(0), alpha, limit,
        width=width, block=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return da


@triton.jit
def clamped_gate_kernel(gate_up, stride, a, alpha, limit, width: tl.constexpr, block: tl.constexpr):
    """A program makes `block` columns of one row of a [rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    place = gate_up + row * stride + 2 * column
    g = tl.minimum(tl.load(place, mask=inside, other=0.0).to(tl.float32), limit)
    u = tl.minimum(tl.maximum(tl.load(place + 1, mask=inside, other=0.0).to(tl.float32), -limit), limit)
    result = (u + 1.0) * g * tl.sigmoid(alpha * g)
    tl.store(a + row * width + column, result.to(a.dtype.element_ty), mask=inside)


@triton.jit
def clamped_gate_backward_kernel(
    da, da_stride, gate_up, stride, alpha, limit, width: tl.constexpr, block: tl.constexpr
):
    """A program turns `block` columns of one row of da [rows, width] into a, and those of gate_up into its gradient."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    da += row * da_stride + column
    place = gate_up + row * stride + 2 * column
    gradient = tl.load(da, mask=inside, other=0.0).to(tl.float32)
    raw_g = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    raw_u = tl.load(place + 1, mask=inside, other=0.0).to(tl.float32)
    g = tl.minimum(raw_g, limit)
    u = tl.minimum(tl.maximum(raw_u, -limit), limit) + 1.0
    share = tl.sigmoid(alpha * g)
    h = g * share
    dg = tl.where(raw_g > limit, 0.0, gradient * u * (share + alpha * h * (1.0 - share)))
    du = tl.where(tl.abs(raw_u) > limit, 0.0, gradient * h)
    tl.store(place, dg.to(gate_up.dtype.element_ty), mask=inside)
    tl.store(place + 1, du.to(gate_up.dtype.element_ty), mask=inside)
    tl.store(da, (h * u).to(da.dtype.element_ty), mask=inside)


@triton.jit
def gate_kernel(g, g_stride, u, u_stride, a, width: tl.constexpr, act: tl.constexpr, block: tl.constexpr):
    """A program makes `block` columns of one row of a [rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    value = tl.load(g + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(u + row * u_stride + column, mask=inside, other=0.0).to(tl.float32)
    h = value * share_of(value, act)
    tl.store(a + row * width + column, (h * up).to(a.dtype.element_ty), mask=inside)


@triton.jit
def gate_backward_kernel(
    da, da_stride, g, g_stride, u, u_stride, width: tl.constexpr, act: tl.constexpr, block: tl.constexpr
):
    """A program turns `block` columns of one row of da, g, u [rows, width] into a, dg, du."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    da += row * da_stride + column
    g += row * g_stride + column
    u += row * u_stride + column
    up = tl.load(u, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(da, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(g, mask=inside, other=0.0).to(tl.float32)
    share = share_of(value, act)
    h = value * share
    tl.store(g, (gradient * up * slope_of(value, share, act)).to(g.dtype.element_ty), mask=inside)
    tl.store(u, (gradient * h).to(u.dtype.element_ty), mask=inside)
    tl.store(da, (h * up).to(da.dtype.element_ty), mask=inside)


@triton.jit
def share_of(g, act: tl.constexpr):
    """act(g) / g, which lies between 0 and 1; g float32. With tanh 0.5 * (1 + tanh(z)) is sigmoid(2 z)."""
    if act == "silu":
        share = tl.sigmoid(g)
    elif act == "gelu_tanh":
        share = tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
    else:
        share = 0.5 * (1.0 + tl.erf(g * 0.7071067811865476))
    return share


@triton.jit
def slope_of(g, share, act: tl.constexpr):
    """act'(g), by the product rule over g * share."""
    if act == "silu":
        slope = share * (1.0 - share)
    elif act == "gelu_tanh":
        slope = share * (1.0 - share) * 1.5957691216057308 * (1.0 + 0.134145 * g * g)
    else:
        slope = 0.3989422804014327 * tl.exp(-0.5 * g * g)
    return share + g * slope
