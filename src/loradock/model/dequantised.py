"""What the 4-bit layers of a loaded model really hold: the library's dense weights against NF4's definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from loradock.catalog.storages import NF4, NF4_SCALES
from loradock.errors import ModelError
from loradock.model import nf4

if TYPE_CHECKING:
    import torch

TOLERANCE = 0.01
"""Of a block's scale: a dense weight is rounded to 16 bits at worst (2**-8); a wrong code or scale is off by tenths."""
ROWS = NF4_SCALES.block
"""Rows that are compared; so many of any width begin and end with a block."""


def check(model: Any) -> int:
    """Compare one NF4 layer of each shape; returns how many were compared. ModelError where one is not what it holds.

    Uses nothing of the library but its operator, by which the run computes. Weights that are not here yet are left out.
    """
    shapes: dict[Any, tuple[str, torch.Tensor, Any]] = {}
    for name, packed, state in quantised(model):
        if state.quant_type == NF4.name and is_here(packed, state):
            shapes.setdefault((tuple(state.shape), state.blocksize, state.dtype), (name, packed, state))
    for name, packed, state in shapes.values():
        off = furthest(packed, state)
        if not off <= TOLERANCE:
            rows, columns = state.shape
            raise ModelError(
                f"{name} ({rows} x {columns}) is dequantised incorrectly on {packed.device}: off by "
                f"{off:.2g} of its scale",
                hint="--set model.quantization=none, and please report the model",
            )
    return len(shapes)


def quantised(model: Any) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """(name, packed numbers, bitsandbytes' state) of every linear layer in 4 bit, and of each matrix's last expert."""
    from bitsandbytes.nn import Linear4bit

    from loradock.model.experts import layout
    from loradock.model.experts.storage import NF4Experts

    for name, module in model.named_modules():
        state = getattr(module.weight, "quant_state", None) if isinstance(module, Linear4bit) else None
        if state is not None:
            yield name, module.weight.data, state
    for matrices in layout.matrices(model):
        weights: Any = matrices.parameter
        if isinstance(weights, NF4Experts):
            last = matrices.experts - 1
            yield f"expert {last} of {matrices.name}", weights.packed[last].unsqueeze(-1), weights.state(last)


def is_here(packed: torch.Tensor, state: Any) -> bool:
    """True where the numbers are in memory, two to a byte, as many as the shape says."""
    return packed.device.type != "meta" and packed.is_contiguous() and 2 * packed.nbytes >= state.shape.numel()


def furthest(packed: torch.Tensor, state: Any) -> float:
    """The largest error of the first and of the last rows, over the scale of each weight's block."""
    import torch
    from bitsandbytes import functional

    dense = functional.dequantize_4bit(packed, state)
    rows, columns = state.shape
    last = max(0, (rows - 1) // ROWS * ROWS)
    worst = 0.0
    for first in {0, last}:
        span = slice(first * columns, min(rows, first + ROWS) * columns)
        exact, scales = unpacked(packed, state, span)
        off = (dense.reshape(-1)[span].cpu().double() - exact).abs() / scales
        worst = max(worst, float(torch.nan_to_num(off, nan=torch.inf).max()))
    return worst


def unpacked(packed: torch.Tensor, state: Any, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights number `span` (from a block's first one) as NF4 defines them, and their scales, float64 on the CPU.

    The first of two weights lies in the upper half of a byte. Scales that are quantised too (double quantisation,
    Dettmers et al. 2023, section 3) are a code's value times the scale of its own block, plus the mean.
    """
    import torch

    book = torch.tensor(nf4.CODE_BOOK, dtype=torch.float64)
    numbers = packed.reshape(-1).view(torch.uint8)[span.start // 2 : -(-span.stop // 2)].cpu().long()
    values = book[torch.stack([numbers >> 4, numbers & 15], dim=1).reshape(-1)][: span.stop - span.start]
    blocks = torch.arange(span.start, span.stop) // state.blocksize
    numbered = state.absmax.reshape(-1).cpu()
    if not state.nested:
        scales = numbered.double()[blocks]
    else:
        outer = state.state2
        codes, outer_scales = outer.code.cpu().double(), outer.absmax.reshape(-1).cpu().double()
        scales = codes[numbered.long()[blocks]] * outer_scales[blocks // outer.blocksize] + float(state.offset)
    return values * scales, scales.abs().clamp(min=1e-30)
