"""What the library calls for each launch of a kernel: it is decoded, and computed or, in a capture, kept."""

from __future__ import annotations

import ctypes
import traceback
from collections import Counter
from typing import Any

from gpu_on_cpu import bitsandbytes_kernels, triton_kernels
from gpu_on_cpu.capture import record
from gpu_on_cpu.native import COMPUTES, LIBRARY, is_native_running, native_code, warn

RUN: Counter[str] = Counter()
"""Kernels that were launched, by name."""
HOOK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_int,
)


@HOOK
def launched(
    name: bytes, function: int, grid: Any, block: Any, args: Any, shared: int, stream: int | None, is_driver: int
) -> int:
    """0, or 1 where a device would have failed; no exception may go through the library."""
    if is_native_running():
        return 0
    text = name.decode()
    RUN[text] += 1
    if not COMPUTES:
        return 0
    with native_code():
        try:
            if is_driver:
                run = triton_kernels.launched(function, args, (grid[0], grid[1], grid[2]))
            else:
                run = bitsandbytes_kernels.decoded(text, args)
            if run is None:
                warn(f"a kernel ran that is not computed: {text[:150]}")
            elif LIBRARY.fakegpu_is_capturing(ctypes.c_void_p(stream)):
                record(run, stream or 0)
            else:
                run()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            return 1
    return 0


def install() -> None:
    """Give the library what decodes launches."""
    LIBRARY.fakegpu_set_launch_hook(launched)
