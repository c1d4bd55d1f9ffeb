"""What the device can do at best: a GPU's published figures, or else products and copies measured for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loradock.facts import Facts
from loradock.plan import gpu_table

ROUNDS, CALLS = 5, 3
TOKENS, WIDTH = {"cpu": 512, "cuda": 4096}, {"cpu": 512, "cuda": 4096}
COPY_BYTES = {"cpu": 32 << 20, "cuda": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """Operations and bytes a second at best; `source` says where that is from."""

    flops: float
    bytes: float
    source: str


def of_device(device: str, *, facts: Facts, dtype: str) -> Ceiling:
    """The GPU's published peaks where it is in the table, else what is measured on `device` (cpu, cuda) now."""
    gpu = gpu_table.known_as(facts.gpu.name) if device == "cuda" else None
    if gpu is not None:
        return Ceiling(flops=gpu.tflops * 1e12, bytes=gpu.memory * 1e9, source=f"{gpu.name}, published")
    tokens, width, size = TOKENS[device], WIDTH[device], COPY_BYTES[device]
    product = product_seconds(device, dtype, tokens=tokens, inputs=width, outputs=width)
    return Ceiling(
        flops=2 * tokens * width * width / product,
        bytes=2 * size / copy_seconds(device, size_bytes=size),
        source=f"measured here: a product of {tokens} x {width} x {width} in {dtype}, a copy of {size >> 20} MiB",
    )


def smallness(
    device: str, dtype: str, *, tokens: int, more_tokens: int, hidden: int, inner: int
) -> tuple[float, float]:
    """What part of a product and of an elementwise operation on `tokens` tokens `more_tokens` at once would save.

    Both are measured at both sizes, in turn, the least time of each counting: (product, elementwise), each 0 .. 1.
    """
    import torch

    kind = getattr(torch, dtype)
    weight = torch.randn(inner, hidden, device=device, dtype=kind)
    few, many = (torch.randn(count, hidden, device=device, dtype=kind) for count in (tokens, more_tokens))
    work = (lambda: few @ weight.T, lambda: many @ weight.T, lambda: few * few, lambda: many * many)
    product, products, single, singles = (
        seconds / count
        for seconds, count in zip(least_seconds(work, device), (tokens, more_tokens, tokens, more_tokens), strict=True)
    )
    return max(0.0, 1 - products / product), max(0.0, 1 - singles / single)


def product_seconds(device: str, dtype: str, *, tokens: int, inputs: int, outputs: int) -> float:
    """Least seconds of [tokens, inputs] x [outputs, inputs]^T."""
    import torch

    kind = getattr(torch, dtype)
    activations, weight = (torch.randn(rows, inputs, device=device, dtype=kind) for rows in (tokens, outputs))
    return least_seconds((lambda: activations @ weight.T,), device)[0]


def copy_seconds(device: str, *, size_bytes: int) -> float:
    """Least seconds of a copy within the device's memory."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return least_seconds((lambda: target.copy_(source),), device)[0]


def least_seconds(work: tuple[Callable[[], Any], ...], device: str) -> list[float]:
    """The least seconds of each, over interleaved rounds of a few calls each; warmed up before."""
    import torch

    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = [float("inf")] * len(work)
    with torch.no_grad():
        for attempt in range(ROUNDS + 1):
            for index, part in enumerate(work):
                settle()
                began = time.perf_counter()
                for _ in range(CALLS):
                    part()
                settle()
                if attempt:
                    best[index] = min(best[index], (time.perf_counter() - began) / CALLS)
    return best
