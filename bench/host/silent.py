"""Launches that do nothing: the host's work around a launch is done on a CPU, but no kernel runs.

bitsandbytes' CUDA backend and Triton's launcher are Python, most of it; here that Python is the real one, up to where
it hands over to the driver. What is left out is the driver's own call, a few microseconds a launch for all alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from bitsandbytes.backends.cuda import ops as on_cuda
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from loradock.training.backends.fast.attention import flash_torch

CPU_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
CPU_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
POINTERS, SIZES = [ctypes.c_void_p] * 4, [ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p]
"""The arguments of its dequantisation kernels, as the backend declares them."""


@contextlib.contextmanager
def silent_launches(*, capability: int = 90) -> Iterator[None]:
    """Within, CPU tensors go through the CUDA code of bitsandbytes (above 1536 rows) and of Triton.

    What a launch would have written is whatever the memory holds, so denormal numbers, slow on a CPU, are flushed.
    """
    before = driver._active
    driver.set_active(SilentDriver(capability))
    torch.set_flush_denormal(True)
    nothing = ctypes.CDLL(None).labs
    nothing.argtypes, nothing.restype = POINTERS + SIZES, None
    lib = SimpleNamespace(cdequantize_blockwise_fp32=nothing, cdequantize_blockwise_fp32_nf4=nothing)
    try:
        with (
            mock.patch.object(on_cuda, "lib", lib),
            mock.patch.object(on_cuda, "_get_raw_stream", some_stream),
            mock.patch.object(flash_torch, "FORWARD", flash_forward),
            mock.patch.object(flash_torch, "BACKWARD", flash_backward),
            torch.library._scoped_library("bitsandbytes", "IMPL") as library,
        ):
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # "overriding a kernel"
                for name, kernel in KERNELS.items():
                    library.impl(name, kernel, "CPU", allow_override=True)
            yield
    finally:
        driver.set_active(before)
        torch.set_flush_denormal(False)


def some_stream(_: Any) -> int:
    """A stream of the driver's, which nobody looks at."""
    return 0


def blockwise(a: Any, absmax: Any, code: Any, blocksize: int, dtype: torch.dtype) -> torch.Tensor:
    """As the backend registers it."""
    out = torch.empty_like(a, dtype=dtype)
    on_cuda._dequantize_blockwise_impl(a, absmax, code, blocksize, dtype, out=out)
    return out


def four_bit(a: Any, absmax: Any, blocksize: int, quant_type: str, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """As the backend registers it."""
    out = torch.empty(shape, dtype=dtype, device=a.device)
    on_cuda._dequantize_4bit_impl(a, absmax, blocksize, quant_type, dtype, out=out)
    return out


def flash_forward(q: Any, k: Any, v: Any, *_: Any, scale: float, **__: Any) -> Any:
    """torch's flash kernel for CPUs in the place of the one for cards, for one document; it really computes."""
    queries, keys, values = (each.transpose(0, 1)[None] for each in (q, k, v))
    out, logsumexp = CPU_FORWARD(queries, keys, values, 0.0, True, scale=scale)
    return out[0].transpose(0, 1), logsumexp, None, None, None


def flash_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, *_: Any, scale: float, **__: Any
) -> Any:
    """Its backward."""
    seen = (each.transpose(0, 1)[None] for each in (dout, q, k, v, out))
    return tuple(each[0].transpose(0, 1) for each in CPU_BACKWARD(*seen, logsumexp, 0.0, True, scale=scale))


KERNELS = {
    "dequantize_blockwise": blockwise,
    "dequantize_4bit": four_bit,
    "gemm_4bit": on_cuda._dequant_linear_fallback,
}


class SilentDriver:
    """A Triton driver for a card of this compute capability, whose launches do nothing."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (object(), 0, 0, 0, 1024),
            get_device_properties=lambda _: {"max_shared_mem": 1 << 20},
        )

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, _: int) -> int:
        """The only one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """What Triton compiles for."""
        return self.target

    def launcher_cls(self, *_: Any) -> Any:
        """What hands a kernel over."""
        return lambda *_: None
