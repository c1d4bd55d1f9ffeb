"""Cross entropy of weighted rows in Triton: an online softmax over each row, then its gradient over the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loradock.training.backends.fast.kernels import launch

MAX_BLOCK = 4096


def cross_entropy_(
    logits: Tensor, targets: Tensor, weights: Tensor, *, softcap: float | None = None, with_gradient: bool = True
) -> Tensor:
    """See `base.Kernels.cross_entropy_`."""
    rows, width = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = min(MAX_BLOCK, launch.block_of(width))
    launch.launch(
        cross_entropy_kernel, (rows,), logits, logits.stride(0), targets, weights, losses, softcap or 1.0,
        width=width, capped=softcap is not None, gradient=with_gradient, block=block, num_warps=launch.warps_of(block),
    )  # fmt: skip
    return losses


@triton.jit
def cross_entropy_kernel(
    logits, stride, targets, weights, losses, cap,
    width: tl.constexpr, capped: tl.constexpr, gradient: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A program does one row of logits [rows, width], read twice: the second time mostly from the L2 cache."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    weight = tl.load(weights + row)
    if weight == 0.0:
        tl.store(losses + row, 0.0)
        if gradient:
            for start in range(0, width, block):
                column = start + tl.arange(0, block)
                tl.store(logits + column, tl.zeros([block], logits.dtype.element_ty), mask=column < width)
    else:
        target = tl.load(targets + row)
        # Every thread has read the target's logit before any overwrites it: the sums below are a barrier between.
        aim = tl.load(logits + target).to(tl.float32)
        if capped:
            aim = cap * tanh(aim / cap)
        # Finite, so that a first block of nothing but -inf (tokens that are barred) leaves the sum at 0.
        top = -1e38
        total = 0.0
        for start in range(0, width, block):
            column = start + tl.arange(0, block)
            value = tl.load(logits + column, mask=column < width, other=-float("inf")).to(tl.float32)
            if capped:
                value = tl.where(column < width, cap * tanh(value / cap), -float("inf"))
            higher = tl.maximum(top, tl.max(value, axis=0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(value - higher), axis=0)
            top = higher
        log_total = top + tl.log(total)
        tl.store(losses + row, weight * (log_total - aim))
        if gradient:
            for start in range(0, width, block):
                column = start + tl.arange(0, block)
                value = tl.load(logits + column, mask=column < width, other=0.0).to(tl.float32)
                slope = 1.0
                if capped:
                    bend = tanh(value / cap)
                    value = cap * bend
                    slope = 1.0 - bend * bend
                share = tl.exp(value - log_total) - tl.where(column == target, 1.0, 0.0)
                tl.store(logits + column, (share * weight * slope).to(logits.dtype.element_ty), mask=column < width)


@triton.jit
def tanh(z):
    """tanh of float32 z, to 1e-7 absolute."""
    return 2.0 * tl.sigmoid(2.0 * z) - 1.0
