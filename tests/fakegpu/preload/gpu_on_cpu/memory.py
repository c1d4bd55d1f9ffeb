"""The device's memory, seen from the CPU."""

from __future__ import annotations

from typing import Any

import torch

from gpu_on_cpu.native import LIBRARY

OF_THE_DEVICE = (0, 3, 4)
"""Device, managed and mapped: `enum Kind` in native/stand_in.h."""


def flat_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of nested arguments or results."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for each in value for tensor in flat_tensors(each)]


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a CPU tensor."""
    if tensor.device.type != "cuda":
        return tensor
    storage = tensor.untyped_storage()
    pointer = storage.data_ptr()
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise NotImplementedError("strided only")
    if pointer == 0:
        out = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    else:
        host = torch._C._construct_storage_from_data_pointer(pointer, torch.device("cpu"), storage.nbytes())
        out = torch.empty(0, dtype=tensor.dtype, device="cpu")
        out.set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_conj():
        out = out.conj()
    return torch._neg_view(out) if tensor.is_neg() else out


def at(
    pointer: int | None, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Device memory at a pointer as a CPU tensor. Memory that is not the device's is an illegal access."""
    stride = stride or contiguous(size)
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
    for place in (pointer or 0, (pointer or 0) + max(0, extent - 1) * dtype.itemsize):
        if not place or LIBRARY.fakegpu_kind(place) not in OF_THE_DEVICE:
            raise RuntimeError(f"CUDA error: an illegal memory access was encountered ({place:#x})")
    assert pointer
    storage = torch._C._construct_storage_from_data_pointer(pointer, torch.device("cpu"), extent * dtype.itemsize)
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, size, stride)


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    stride: tuple[int, ...] = ()
    count = 1
    for each in reversed(size):
        stride = (count, *stride)
        count *= each
    return stride
