"""bitsandbytes' kernels, decoded from their mangled names and arguments."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import torch

from gpu_on_cpu.memory import at

FLOATS = {"13__nv_bfloat16": torch.bfloat16, "6__half": torch.float16, "f": torch.float32}
NF4 = torch.tensor(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]
)  # fmt: skip
"""The 16 values of NF4 (QLoRA, Dettmers et al. 2023, appendix E)."""
OF_BYTES, POINTER, INT = "0", ctypes.c_void_p, ctypes.c_int
"""The data type in a kernel's name: 8-bit codes with a table of 256; the others are NF4."""
LION, FLOAT = 5, ctypes.c_float
"""The optimiser's number in a kernel's name."""
OUTER_BLOCK = 256
"""Scales that share one scale where scales are quantised, too."""


def arguments(args: Any, *kinds: Any) -> list[Any]:
    """The values that a launch was handed."""
    return [ctypes.cast(args[i], ctypes.POINTER(kind)).contents.value for i, kind in enumerate(kinds)]


def dense_nf4(packed: torch.Tensor, scales: torch.Tensor, blocksize: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """n weights from their packed codes and the scale of each block."""
    codes = torch.stack([packed >> 4, packed & 15], -1).flatten()[:n].long()
    return (NF4[codes] * scales.repeat_interleave(blocksize)[:n]).to(dtype)


def dequantise(name: str, args: Any) -> Callable[[], None] | None:
    found = re.search(r"kDequantizeBlockwiseI(\d+__\w+?|f)Li\d+ELi\d+ELi\d+ELi(\d)EE", name)
    if found is None:
        return None
    dtype, is_bytes = FLOATS[found[1]], found[2] == OF_BYTES
    code, a, scales, out, blocksize, n = arguments(args, POINTER, POINTER, POINTER, POINTER, INT, INT)
    block = blocksize if is_bytes else 2 * blocksize  # the host code hands half of it to the 4-bit kernel

    def run() -> None:
        each = at(scales, torch.float32, (-(-n // block),))
        if is_bytes:
            values = at(code, torch.float32, (256,))[at(a, torch.uint8, (n,)).long()]
            dense = (values * each.repeat_interleave(block)[:n]).to(dtype)
        else:
            dense = dense_nf4(at(a, torch.uint8, ((n + 1) // 2,)), each, block, n, dtype)
        at(out, dtype, (n,)).copy_(dense)

    return run


def quantise(name: str, args: Any) -> Callable[[], None] | None:
    found = re.search(r"kQuantizeBlockwiseI(\d+__\w+?|f)Li(\d+)ELi\d+ELi\dELi(\d)EE", name)
    found = found or re.search(r"kQuantizeBlockwiseSmallI(\d+__\w+?|f)Li(\d+)ELi(\d)EE", name)
    if found is None:
        return None
    dtype, blocksize, is_bytes = FLOATS[found[1]], int(found[2]), found[3] == OF_BYTES
    code, a, scales, out, _, _, n = arguments(args, POINTER, POINTER, POINTER, POINTER, POINTER, INT, INT)

    def run() -> None:
        blocks = -(-n // blocksize)
        values = torch.nn.functional.pad(at(a, dtype, (n,)).float(), (0, blocks * blocksize - n))
        values = values.view(blocks, blocksize)
        most = values.abs().amax(1)
        at(scales, torch.float32, (blocks,)).copy_(most)
        table = at(code, torch.float32, (256,)) if is_bytes else NF4
        scaled = (values / most.clamp(min=1e-30)[:, None]).flatten()[:n]
        codes = torch.bucketize(scaled, (table[1:] + table[:-1]) / 2).to(torch.uint8)
        if is_bytes:
            at(out, torch.uint8, (n,)).copy_(codes)
        else:
            codes = torch.nn.functional.pad(codes, (0, n % 2)).view(-1, 2)
            at(out, torch.uint8, ((n + 1) // 2,)).copy_(codes[:, 0] << 4 | codes[:, 1])

    return run


def product(name: str, args: Any) -> Callable[[], None] | None:
    """x [m, k] times the transpose of 4-bit weights [n, k]."""
    found = re.search(r"I(\d+__(?:nv_bfloat16|half)|f)", name)
    if found is None:
        return None
    dtype = FLOATS[found[1]]
    a, b, scales, scales8, code, offset, out, bias, m, n, k, blocksize, _ = arguments(
        args, *[POINTER] * 8, *[INT] * 5
    )  # fmt: skip

    def run() -> None:
        blocks = -(-n * k // blocksize)
        each = at(scales, torch.float32, (-(-blocks // OUTER_BLOCK) if scales8 else blocks,))
        if scales8:
            inner = at(code, torch.float32, (256,))[at(scales8, torch.uint8, (blocks,)).long()]
            each = inner * each.repeat_interleave(OUTER_BLOCK)[:blocks] + at(offset, torch.float32, (1,))
        weight = dense_nf4(at(b, torch.uint8, ((n * k + 1) // 2,)), each, blocksize, n * k, dtype).view(n, k)
        y = at(a, dtype, (m, k)).float() @ weight.float().t()
        at(out, dtype, (m, n)).copy_(y + at(bias, dtype, (n,)).float() if bias else y)

    return run


def one_state_step(name: str, args: Any) -> Callable[[], None] | None:
    """A step of Lion (Chen et al. 2023) in 32 bits; the other optimisers with one state are not computed."""
    found = re.search(rf"kOptimizer32bit1StateI(\d+__\w+?|f)Li{LION}EE", name)
    if found is None:
        return None
    dtype = FLOATS[found[1]]
    kinds = (*[POINTER] * 4, *[FLOAT] * 6, INT, FLOAT, FLOAT, ctypes.c_bool, INT)
    g, p, state, _, _, _, beta1, beta2, _, decay, _, lr, scale, _, n = arguments(args, *kinds)

    def run() -> None:
        gradient = at(g, dtype, (n,)).float() * scale
        weights, mean = at(p, dtype, (n,)), at(state, torch.float32, (n,))
        update = (beta1 * mean + (1 - beta1) * gradient).sign()
        weights.copy_(weights.float() * (1 - lr * decay) - lr * update)
        mean.mul_(beta2).add_(gradient, alpha=1 - beta2)

    return run


KERNELS = (
    ("kOptimizer32bit1State", one_state_step),
    ("kDequantizeBlockwise", dequantise),
    ("kQuantizeBlockwise", quantise),
    ("gemm_4bit", product),
)


def decoded(name: str, args: Any) -> Callable[[], None] | None:
    """What a launch would compute, or None where the kernel is not known."""
    return next((decode(name, args) for part, decode in KERNELS if part in name), None)
