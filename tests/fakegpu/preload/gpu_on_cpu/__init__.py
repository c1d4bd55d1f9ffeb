"""The numbers of a stand-in CUDA device: torch's, bitsandbytes' and Triton's own CUDA code runs, the CPU computes.

`libcuda.so.1`, preloaded, stands before the driver, the runtime and cuBLAS: device memory is host memory with a
capacity, and launches do nothing. On top of it, here:

- an aten operator with a CUDA kernel runs that kernel first (its checks, allocations and launches are the real ones),
  then the CPU's kernel over the same memory gives the numbers (`operators`, `attention`);
- launches of bitsandbytes and Triton are decoded at the driver's door, from the pointers that were really handed over
  (`launches`, `bitsandbytes_kernels`, `triton_kernels`, `own_kernels`);
- while a stream is captured nothing is computed but what shapes need; a replay computes what was captured (`capture`).

What a real device adds, and this does not have: asynchrony, races, the numbers of its kernels, speed.
"""

from __future__ import annotations

import os

from gpu_on_cpu.native import COUNTS, Counts

__all__ = ["COUNTS", "Counts", "installed_after"]


def installed_after(name: str) -> None:
    """Install what torch or Triton needs, once it has been imported."""
    if name == "triton":
        from gpu_on_cpu.triton_kernels import remember_compiled_kernels

        remember_compiled_kernels()
    elif os.environ.get("FAKEGPU_DEVICES") != "0":  # asking torch for devices would keep the process from forking
        from gpu_on_cpu import capture, launches, operators

        operators.install()
        capture.install()
        launches.install()
