"""The down projection of adapters under dropout in plain torch: some rows at a time, in the caches of a CPU.

A row of `x` under a mask lives from one operation to the next; the masks are made again where they are needed. What
`base.Dropout` says of them is done here, operation by operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from loradock.training.backends.fast.kernels.base import Dropout

STRIDE_OF_ADAPTERS = 0x9E3779B97F4A7C15 - (1 << 64)
ROW_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
COLUMN_FACTORS = (0x7FEB352D, 0x846CA68B - (1 << 32))
CPU_ELEMENTS_AT_ONCE = 1 << 19  # a thread, of each tensor: fewer cost more in calls than the caches give back
GPU_ELEMENTS_AT_ONCE = 1 << 24


def lora_down(x: Tensor, a: Tensor, dropout: Dropout, *, rank: int) -> Tensor:
    """See `base.Kernels.lora_down`."""
    h = x.new_empty(x.shape[0], a.shape[0])
    masks = Masks(x, dropout, adapters=a.shape[0] // rank)
    for rows, adapter, ranks in masks.parts(rank):
        torch.mm(masks.kept(x[rows], rows, adapter), a[ranks].t(), out=h[rows, ranks])
    return h.mul_(dropout.scale)


def lora_down_backward_a(dh: Tensor, x: Tensor, dropout: Dropout, *, rank: int, out: Tensor) -> None:
    """See `base.Kernels.lora_down_backward_a`. Sums over rows that are added up in parts are in float32."""
    total = torch.zeros_like(out, dtype=torch.float32)
    masks = Masks(x, dropout, adapters=out.shape[0] // rank)
    for rows, adapter, ranks in masks.parts(rank):
        part, kept = dh[rows, ranks].t(), masks.kept(x[rows], rows, adapter)
        if kept.dtype == torch.float32:
            total[ranks].addmm_(part, kept)
        else:
            total[ranks] += torch.mm(part, kept)
    out.copy_(total.mul_(dropout.scale))


def lora_down_backward_x_(dx: Tensor, dh: Tensor, a: Tensor, dropout: Dropout, *, rank: int) -> None:
    """See `base.Kernels.lora_down_backward_x_`."""
    masks = Masks(dx, dropout, adapters=a.shape[0] // rank)
    part = dx.new_empty(masks.together, dx.shape[1])
    for rows, adapter, ranks in masks.parts(rank):
        product = torch.mm(dh[rows, ranks], a[ranks], out=part[: dx[rows].shape[0]])
        dx[rows].add_(masks.kept(product, rows, adapter), alpha=dropout.scale)


class Masks:
    """The masks over x [T, n], a few rows at a time, in buffers of its own.

    An allocation a row block would cost more than what is done in it: the pages are new each time.
    """

    def __init__(self, x: Tensor, dropout: Dropout, *, adapters: int) -> None:
        elements = CPU_ELEMENTS_AT_ONCE * torch.get_num_threads() if x.device.type == "cpu" else GPU_ELEMENTS_AT_ONCE
        self.rows, width = x.shape
        self.together = min(self.rows, max(1, elements // width))
        self.highest_dropped = dropout.highest_dropped
        self.row_words = [row_words(dropout.keys, dropout.first + adapter) for adapter in range(adapters)]
        self.columns = column_words(width, x.device)
        self.words = x.new_empty(2, self.together, width, dtype=torch.int32)
        self.buffer = x.new_empty(self.together, width)

    def parts(self, rank: int) -> Iterator[tuple[slice, int, slice]]:
        """Rows that are done at once, an adapter's number in the call, and its columns of h."""
        for start in range(0, self.rows, self.together or 1):
            for adapter in range(len(self.row_words)):
                yield slice(start, start + self.together), adapter, slice(adapter * rank, (adapter + 1) * rank)

    def kept(self, x: Tensor, rows: slice, adapter: int) -> Tensor:
        """A copy of x [rows, n], zero where it is dropped, valid until the next; x may be the last one."""
        most, out = self.highest_dropped, self.buffer[: x.shape[0]]
        words, others = self.words[:, : x.shape[0]]
        row, other_row = self.row_words[adapter]
        torch.mul(row[rows], self.columns[0], out=words)
        words ^= torch.mul(other_row[rows], self.columns[1], out=others)
        if x.dtype != torch.float32:
            return torch.mul(x, words > most, out=out)
        # relu's backward is the one vectorised operation that selects by a comparison; in 32 bits any bits will do
        bits = x.view(torch.int32), words, most
        torch.ops.aten.threshold_backward.grad_input(*bits, grad_input=out.view(torch.int32))
        return out


def row_words(keys: Tensor, adapter: int) -> tuple[Tensor, Tensor]:
    """Two int32 words a row, [T, 1] each, from keys int64 [T]."""
    z = (keys[:, None] + _wrapped(adapter * STRIDE_OF_ADAPTERS)).mul_(ROW_FACTORS[0])
    z ^= z >> 32
    z.mul_(ROW_FACTORS[1])
    z ^= z >> 32
    return (z >> 32).to(torch.int32) | 1, z.to(torch.int32) | 1


@lru_cache(maxsize=64)
def column_words(width: int, device: torch.device) -> Tensor:
    """Two int32 words a column, [2, n]."""
    numbers = torch.arange(width, dtype=torch.int32, device=device)
    words = torch.stack([numbers, ~numbers]).mul_(COLUMN_FACTORS[0])
    words ^= words >> 15
    words.mul_(COLUMN_FACTORS[1])
    words ^= words >> 16
    return words | 1


def _wrapped(number: int) -> int:
    """The signed 64-bit number with the same lowest bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
