"""The down projection of adapters under dropout in Triton: masks are made where x, or its gradient, is in registers.

One launch serves the adapters of a group. Forward reads x once an adapter (from the cache but for the first), backward
the same, and the gradient to x is read and written once for all of them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from loradock.training.backends.fast.kernels import launch
from loradock.training.backends.fast.kernels.base import Dropout

MOST_COLUMNS = 128
WEIGHTS_AT_ONCE = 8192  # of A in a program: 16 KiB in 16-bit, so that two stages fit every card's shared memory
WARPS = 4


def lora_down(x: Tensor, a: Tensor, dropout: Dropout, *, rank: int) -> Tensor:
    """See `base.Kernels.lora_down`."""
    rows = x.shape[0]
    h = x.new_empty(rows, a.shape[0])
    blocks, size, columns = _sizes(rank, x)
    launch.launch(
        lora_down_kernel, (-(-rows // 16), blocks * a.shape[0] // rank),
        x, x.stride(0), dropout.keys, a, h, rows, dropout.first, **_fixed(x, a, dropout, rank),
        block=16, columns=columns, blocks_of_rank=blocks, block_rank=size, num_warps=WARPS,
    )  # fmt: skip
    return h


def lora_down_backward_a(dh: Tensor, x: Tensor, dropout: Dropout, *, rank: int, out: Tensor) -> None:
    """See `base.Kernels.lora_down_backward_a`."""
    rows, width = x.shape
    blocks, size, columns = _sizes(rank, x)
    columns = min(columns, 32)  # a program has all rows of its columns: narrow ones, so that there are many
    launch.launch(
        lora_down_backward_a_kernel, (-(-width // columns), blocks * out.shape[0] // rank),
        dh, x, x.stride(0), dropout.keys, out, rows, dropout.first, **_fixed(x, out, dropout, rank),
        block=64 if x.itemsize == 2 else 16, columns=columns, blocks_of_rank=blocks, block_rank=size, num_warps=WARPS,
    )  # fmt: skip


def lora_down_backward_x_(dx: Tensor, dh: Tensor, a: Tensor, dropout: Dropout, *, rank: int) -> None:
    """See `base.Kernels.lora_down_backward_x_`."""
    rows, width = dx.shape
    blocks, size, columns = _sizes(rank, dx)
    launch.launch(
        lora_down_backward_x_kernel, (-(-rows // 32), -(-width // columns)),
        dx, dx.stride(0), dh, dropout.keys, a, rows, dropout.first, **_fixed(dx, a, dropout, rank),
        block=32, columns=columns, blocks_of_rank=blocks, block_rank=size, num_warps=WARPS,
    )  # fmt: skip


def _sizes(rank: int, x: Tensor) -> tuple[int, int, int]:
    """Blocks of an adapter's rank, ranks of a block, and columns of A that a program takes at once.

    A block is filled up to what tensor cores take. Float32 is multiplied without them, by what fits the registers.
    """
    size = min(max(16, launch.block_of(rank)), 256 if x.itemsize == 2 else 32)
    return -(-rank // size), size, max(16, min(MOST_COLUMNS if x.itemsize == 2 else 64, WEIGHTS_AT_ONCE // size))


def _fixed(x: Tensor, a: Tensor, dropout: Dropout, rank: int) -> dict[str, Any]:
    """The constants that all three kernels take."""
    return {
        "width": x.shape[1],
        "rank": rank,
        "all_ranks": a.shape[0],
        "most": dropout.highest_dropped,
        "scale": dropout.scale,
    }


@triton.jit(do_not_specialize=["rows", "first"])
def lora_down_kernel(
    x, x_stride, keys, a, h, rows, first,
    width: tl.constexpr, rank: tl.constexpr, all_ranks: tl.constexpr, most: tl.constexpr, scale: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, blocks_of_rank: tl.constexpr, block_rank: tl.constexpr,
):  # fmt: skip
    """A program makes `block` rows of one block of an adapter's part of h [rows, all_ranks]."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    adapter = tl.program_id(1) // blocks_of_rank
    own = tl.program_id(1) % blocks_of_rank * block_rank + tl.arange(0, block_rank)
    mixed = mixed_keys(keys, row, rows, first + adapter)
    total = tl.zeros((block, block_rank), dtype=tl.float32)
    for start in range(0, width, columns):
        column = start + tl.arange(0, columns)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        value = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0)
        value = tl.where(is_kept(mixed, column, most), value, 0.0)
        place = a + (adapter * rank + own)[None, :] * width + column[:, None]
        weight = tl.load(place, mask=(own < rank)[None, :] & (column < width)[:, None], other=0.0)
        total = tl.dot(value, weight, total, input_precision="ieee")
    place = h + row[:, None] * all_ranks + (adapter * rank + own)[None, :]
    tl.store(place, (total * scale).to(h.dtype.element_ty), mask=(row < rows)[:, None] & (own < rank)[None, :])


@triton.jit(do_not_specialize=["rows", "first"])
def lora_down_backward_a_kernel(
    dh, x, x_stride, keys, da, rows, first,
    width: tl.constexpr, rank: tl.constexpr, all_ranks: tl.constexpr, most: tl.constexpr, scale: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, blocks_of_rank: tl.constexpr, block_rank: tl.constexpr,
):  # fmt: skip
    """A program makes `columns` columns of one block of an adapter's da [all_ranks, width], by `block` rows of x."""
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    adapter = tl.program_id(1) // blocks_of_rank
    own = tl.program_id(1) % blocks_of_rank * block_rank + tl.arange(0, block_rank)
    total = tl.zeros((block_rank, columns), dtype=tl.float32)
    for start in range(0, rows, block):
        row = start + tl.arange(0, block).to(tl.int64)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        value = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0)
        mixed = mixed_keys(keys, row, rows, first + adapter)
        value = tl.where(is_kept(mixed, column, most), value, 0.0)
        place = dh + row[None, :] * all_ranks + (adapter * rank + own)[:, None]
        gradient = tl.load(place, mask=(own < rank)[:, None] & (row < rows)[None, :], other=0.0)
        total = tl.dot(gradient, value, total, input_precision="ieee")
    place = da + (adapter * rank + own)[:, None] * width + column[None, :]
    tl.store(place, (total * scale).to(da.dtype.element_ty), mask=(own < rank)[:, None] & (column < width)[None, :])


@triton.jit(do_not_specialize=["rows", "first"])
def lora_down_backward_x_kernel(
    dx, dx_stride, dh, keys, a, rows, first,
    width: tl.constexpr, rank: tl.constexpr, all_ranks: tl.constexpr, most: tl.constexpr, scale: tl.constexpr,
    block: tl.constexpr, columns: tl.constexpr, blocks_of_rank: tl.constexpr, block_rank: tl.constexpr,
):  # fmt: skip
    """A program adds what all adapters give to `block` rows and `columns` columns of dx [rows, width]."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((block, columns), dtype=tl.float32)
    for index in range(all_ranks // rank * blocks_of_rank):
        adapter = index // blocks_of_rank
        own = index % blocks_of_rank * block_rank + tl.arange(0, block_rank)
        place = dh + row[:, None] * all_ranks + (adapter * rank + own)[None, :]
        gradient = tl.load(place, mask=(row < rows)[:, None] & (own < rank)[None, :], other=0.0)
        place = a + (adapter * rank + own)[:, None] * width + column[None, :]
        weight = tl.load(place, mask=(own < rank)[:, None] & (column < width)[None, :], other=0.0)
        part = tl.dot(gradient, weight, input_precision="ieee")
        mixed = mixed_keys(keys, row, rows, first + adapter)
        total += tl.where(is_kept(mixed, column, most), part, 0.0)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = dx + row[:, None] * dx_stride + column[None, :]
    total = tl.load(place, mask=inside, other=0.0).to(tl.float32) + total * scale
    tl.store(place, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def mixed_keys(keys, row, rows, adapter):
    """The int64 of each row, of which its two words are the halves; see `base.Dropout`."""
    z = tl.load(keys + row, mask=row < rows, other=0) + adapter.to(tl.int64) * -7046029254386353131
    z *= -4658895280553007687
    z ^= z >> 32
    z *= -7723592293110705685
    return z ^ (z >> 32)


@triton.jit
def column_words(column):
    """The int32 word of each column."""
    word = column * 2146121005
    word ^= word >> 15
    word *= -2073254261
    return (word ^ (word >> 16)) | 1


@triton.jit
def is_kept(mixed, column, most: tl.constexpr):
    """Whether x of these rows and columns is kept; [rows, columns]."""
    word, other = (mixed >> 32).to(tl.int32) | 1, mixed.to(tl.int32) | 1
    first = word[:, None] * column_words(column)[None, :]
    return (first ^ (other[:, None] * column_words(-1 - column)[None, :])) > most
