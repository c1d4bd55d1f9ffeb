"""Tensors as a safetensors file, part by part: what `safetensors.torch.save` makes, without the copy of all in memory.

    header length (8 bytes, little-endian) | header (JSON, filled up with spaces to 8 bytes) | each tensor's bytes

A tensor with wider elements comes before one with narrower ones, and then it goes by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from loradock.files.atomic_io import Sink

ALIGNED_BYTES = 8
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""From wide to narrow, and as safetensors orders those that are as wide."""


def write(tensors: Mapping[str, torch.Tensor], sink: Sink) -> None:
    """Write the tensors, which may lie on any device and share their memory. Raises KeyError for a dtype not in DTYPES.

    What `sink` raises comes out.
    """
    order = list(DTYPES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED_BYTES)
    sink.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        elements: Any = tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        sink.write(memoryview(elements))
