"""The one door through which a Triton kernel is launched, and the block sizes that the kernels share.

Callers reach it as `launch.launch`, so that a counter of launches can take its place (fake tensors have no memory).
Sizes follow from widths alone: nothing is tuned while training, so that a run's numbers do not hang on timings.
"""

from __future__ import annotations

from typing import Any

ELEMENTS_PER_WARP = 512  # 16 a thread: two loads of 16 bytes in 16-bit, and a row of 8192 in float32 needs no spills
MAX_WARPS = 16


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constexprs: Any) -> None:
    """Queue `kernel` (made by `triton.jit`) over `grid` on the current stream; outputs are among `args`."""
    kernel[grid](*args, **constexprs)


def block_of(width: int) -> int:
    """The smallest power of two that is at least `width`, for a width of at least 1."""
    return 1 << (width - 1).bit_length()


def warps_of(elements: int) -> int:
    """Warps of a program that holds `elements`, a power of two, at once."""
    return min(MAX_WARPS, max(1, elements // ELEMENTS_PER_WARP))
