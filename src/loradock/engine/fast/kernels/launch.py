"""The one door through which a Triton kernel is launched.

Callers reach it as `launch.launch`, so that a counter of launches can take its place (fake tensors have no memory).
"""

from __future__ import annotations

from typing import Any


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constexprs: Any) -> None:
    """Queue `kernel` (made by `triton.jit`) over `grid` on the current stream; outputs are among `args`."""
    kernel[grid](*args, **constexprs)
