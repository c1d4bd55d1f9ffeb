"""The one door through which a Triton kernel is launched, and the block sizes that the kernels share.

Callers reach it as `launch.launch`, so that a counter of launches can take its place (fake tensors have no memory).
Sizes follow from widths alone: nothing is tuned while training, so that a run's numbers do not hang on timings.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor
from triton.runtime import JITFunction, driver

ELEMENTS_PER_WARP = 512  # 16 a thread: two loads of 16 bytes in 16-bit, and a row of 8192 in float32 needs no spills
MAX_WARPS = 16
KNOWN_TRITON = "3.6."
"""Whose compiled kernels are handed over directly; every launch goes through another version's own door."""


class Launcher:
    """Queues kernels; one that was queued with like arguments before is handed over without Triton's search for it.

    Triton compiles a kernel anew for other dtypes, other alignment, an integer that is 1, a multiple of 16 or wider
    than 32 bits, and other constants, and its search among what it compiled costs the host more than the launch. Hooks
    of Triton's own profiler are not called.
    """

    def __init__(self) -> None:
        self.compiled: dict[Any, Any] = {}

    def __call__(
        self, kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int | None = None, **constexprs: Any
    ) -> None:
        """Queue `kernel` over `grid` (of one or two numbers) on the current stream; outputs are among `args`.

        The kernel is made by `triton.jit` and takes `args`, then `constexprs`, in this order; or it is any object that
        is called likewise, which is left to its own, as all are under a Triton that is not known.
        """
        options = {} if num_warps is None else {"num_warps": num_warps}
        if not isinstance(kernel, JITFunction) or not triton.__version__.startswith(KNOWN_TRITON):
            kernel[grid](*args, **constexprs, **options)
            return
        active: Any = driver.active
        device = active.get_current_device()
        key = (kernel.fn, device, num_warps, *map(kind_of, args), *constexprs.values())
        known = self.compiled.get(key)
        if known is None:
            self.compiled[key] = kernel[grid](*args, **constexprs, **options)
            return
        stream = active.get_current_stream(device)
        across, down = grid if len(grid) == 2 else (*grid, 1)
        handle = (known.function, known.packed_metadata)
        no_hooks = (None, None, None)
        known.run(across, down, 1, stream, *handle, *no_hooks, *args, *constexprs.values())


def kind_of(argument: Any) -> Any:
    """What Triton tells apart in an argument that is no constant."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, argument >> 31
    return type(argument)


launch = Launcher()


def block_of(width: int) -> int:
    """The smallest power of two that is at least `width`, for a width of at least 1."""
    return 1 << (width - 1).bit_length()


def warps_of(elements: int) -> int:
    """Warps of a program that holds `elements`, a power of two, at once."""
    return min(MAX_WARPS, max(1, elements // ELEMENTS_PER_WARP))
