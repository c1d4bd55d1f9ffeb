"""What a machine can do at best: products, copies and NF4 dequantisation, each repeated for some seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PRODUCTS = {  # (inputs, outputs) of the linear layers of Mistral-7B and Llama-3-8B
    "gate": (4096, 14336),
    "down": (14336, 4096),
    "query": (4096, 4096),
    "key": (4096, 1024),
}
CEILING = "gate"
NF4_BITS = 4.127
"""Bits a weight that NF4 with double quantisation reads: 4, 8 a 64 for the scales, 32 a 64 x 256 for theirs (QLoRA,
Dettmers et al. 2023, section 3)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where it is measured: `cpu` or `cuda`, in this dtype (float32 on a CPU, bfloat16 on a card)."""

    kind: str
    dtype: str

    @classmethod
    def of(cls, kind: str) -> Device:
        """The dtype that training uses there."""
        return cls(kind=kind, dtype="bfloat16" if kind == "cuda" else "float32")

    def settle(self) -> None:
        """Wait for what was launched."""
        import torch

        if self.kind == "cuda":
            torch.cuda.synchronize()

    def tensor(self, *shape: int) -> Any:
        """Random values."""
        import torch

        return torch.randn(*shape, device=self.kind, dtype=getattr(torch, self.dtype))


def timed(work: Callable[[], object], *, device: Device, seconds: float, rounds: int = 10) -> list[float]:
    """Seconds of one call of `work`, in each of the rounds that fill about `seconds`; warmed up before."""
    work()
    device.settle()
    began = time.perf_counter()
    work()
    device.settle()
    calls = max(1, int(seconds / rounds / max(1e-6, time.perf_counter() - began)))
    found: list[float] = []
    ends = time.perf_counter() + seconds
    while not found or (time.perf_counter() < ends and len(found) < rounds):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        device.settle()
        found.append((time.perf_counter() - began) / calls)
    return found


def rate(amount: float, seconds: list[float]) -> dict[str, float]:
    """`amount` a second: slowest, median and fastest round."""
    rates = [amount / each for each in seconds]
    return {"min": min(rates), "median": statistics.median(rates), "max": max(rates)}


def product(device: Device, *, tokens: int, inputs: int, outputs: int, seconds: float) -> dict[str, float]:
    """FLOP/s of [tokens, inputs] x [outputs, inputs]^T: 2 operations a multiplication and addition."""
    left, weight = device.tensor(tokens, inputs), device.tensor(outputs, inputs)
    taken = timed(lambda: left @ weight.T, device=device, seconds=seconds)
    return rate(2.0 * tokens * inputs * outputs, taken)


def copy(device: Device, *, size_bytes: int, seconds: float) -> dict[str, float]:
    """Bytes a second of a copy within the device's memory: each byte is read and written."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device=device.kind)
    target = torch.empty_like(source)
    return rate(2.0 * size_bytes, timed(lambda: target.copy_(source), device=device, seconds=seconds))


def dequantise(device: Device, *, inputs: int, outputs: int, seconds: float) -> dict[str, float]:
    """Bytes a second that bitsandbytes reads (NF4, double quantisation) and writes as it restores one weight."""
    from bitsandbytes import functional

    weight = device.tensor(outputs, inputs)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    taken = timed(lambda: functional.dequantize_4bit(packed, state), device=device, seconds=seconds)
    return rate(inputs * outputs * (NF4_BITS / 8 + weight.element_size()), taken)


def measure(device: Device, *, tokens: list[int], seconds: float, shrink: int = 1) -> dict[str, Any]:
    """All rates, by name; `shrink` divides the sizes of the products, for machines that are slow."""
    shapes = {name: (inputs // shrink, outputs // shrink) for name, (inputs, outputs) in PRODUCTS.items()}
    share = seconds / (len(tokens) * len(shapes) + 2)
    products = {
        name: {
            str(count): product(device, tokens=count, inputs=inputs, outputs=outputs, seconds=share) for count in tokens
        }
        for name, (inputs, outputs) in shapes.items()
    }
    inputs, outputs = shapes[CEILING]
    copied_bytes = (1 << 30) if device.kind == "cuda" else (128 << 20)
    return {
        "device": device.kind,
        "dtype": device.dtype,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "product_flops": products,
        "copy_bytes": copy(device, size_bytes=copied_bytes, seconds=share),
        "dequantise_bytes": dequantise(device, inputs=inputs, outputs=outputs, seconds=share),
        "ceiling_flops": max(each["median"] for each in products[CEILING].values()),
    }
