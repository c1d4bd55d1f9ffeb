"""NF4 layers held dense, with the values that NF4 gives them: the same model, without dequantising in each pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loradock.machine import Host
from loradock.machine.probe import memory_limit

if TYPE_CHECKING:
    import torch

SHARE = 0.5
"""Of the memory that dense weights may take; the rest is for what is quantised still, caches and activations."""


def densify(model: Any, *, dtype: torch.dtype) -> bool:
    """Put plain weights in place of a loaded model's NF4 layers and experts, where memory allows; True if it was done.

    `dtype` is that of matrix products, in which bitsandbytes dequantises too.
    """
    import torch
    from bitsandbytes import functional
    from bitsandbytes.nn import Linear4bit

    from loradock.model.experts import layout
    from loradock.model.experts.storage import NF4Experts

    layers: list[tuple[str, Any]] = [
        (name, module) for name, module in model.named_modules() if isinstance(module, Linear4bit)
    ]
    experts = [matrices for matrices in layout.matrices(model) if isinstance(matrices.parameter, NF4Experts)]
    count = sum(module.weight.quant_state.shape.numel() for _, module in layers)
    wanted_bytes = dtype.itemsize * (count + sum(matrices.parameter.numel() for matrices in experts))
    if not layers or wanted_bytes > SHARE * free_bytes(model.device):
        return False
    for name, module in layers:
        state = module.weight.quant_state
        dense = torch.nn.Linear(1, 1, bias=False, device="meta")
        dense.in_features, dense.out_features = module.in_features, module.out_features
        values = functional.dequantize_4bit(module.weight.data, state).to(dtype)
        dense.weight = torch.nn.Parameter(values, requires_grad=False)
        dense.bias = module.bias
        parent, _, parent_name = name.rpartition(".")
        setattr(model.get_submodule(parent), parent_name, dense)
    for matrices in experts:
        stored: Any = matrices.parameter
        values = stored.dense().to(dtype)
        setattr(matrices.module, matrices.key, torch.nn.Parameter(values, requires_grad=False))
    for mark in ("is_loaded_in_4bit", "is_quantized", "quantization_method", "hf_quantizer"):
        if hasattr(model, mark):
            delattr(model, mark)
    return True


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU, or what this machine and its cgroup have."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_limit(Host())
