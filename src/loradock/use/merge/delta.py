"""One weight with its adapter: the numbers that training multiplied with, plus the adapter's change, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loradock.errors import ModelError
from loradock.model.adapter_tensors import ADAPTER
from loradock.model.patches import whole_blocks
from loradock.text.terminal import first_line
from loradock.use.merge import tensors
from loradock.use.merge.adapted import Adapted, Delta

if TYPE_CHECKING:
    import torch


def dequantised(
    weight: torch.Tensor, *, dtype: torch.dtype, quant_type: str, double_quant: bool, transposed: bool, device: str
) -> torch.Tensor:
    """The values [rows, columns], float32 on the CPU, that a weight has once it is loaded in 4 bit, as by "nf4".

    The way of the loader: cast to the `dtype` that the model is loaded in, quantised whole (the scales of double
    quantisation are relative to their mean over the matrix), on `device` (cpu or cuda). `transposed`: a Conv1D,
    which is quantised as the linear layer that it stands for.
    """
    from bitsandbytes import functional
    from bitsandbytes.nn import Params4bit

    if device == "cpu":
        whole_blocks.fix()
    value = weight.to(dtype)
    value = value.T if transposed else value
    make: Any = Params4bit
    packed = make(value, requires_grad=False, quant_type=quant_type, compress_statistics=double_quant).to(device)
    del value
    dense = functional.dequantize_4bit(packed.data, packed.quant_state).cpu().float()
    return dense.T.contiguous() if transposed else dense


def unpacked(entry: tensors.Entry, *, dtype: torch.dtype, device: str) -> torch.Tensor:
    """The values, float32 on the CPU, of a weight that files hold in NF4, made dense in `dtype` as in training."""
    import torch
    from bitsandbytes import functional

    if device == "cpu":
        whole_blocks.fix()
    parts = {name.removeprefix("."): tensors.read(part) for name, part in entry.parts.items()}
    packed = parts.pop("").to(device)
    state: Any = functional.QuantState.from_dict(parts, device=torch.device(device))
    state.dtype = dtype
    return functional.dequantize_4bit(packed, state).cpu().float()


def merged(weight: torch.Tensor, delta: Delta, adapted: Adapted) -> torch.Tensor:
    """The weight (float32, overwritten) with LoRA or DoRA added by PEFT's own layer. ModelError if that refuses."""
    layer = delta.layer
    with _filled(layer, weight, delta, adapted):
        variant = layer.lora_variant.get(ADAPTER)
        if variant is None:
            return weight.add_(layer.get_delta_weight(ADAPTER))
        try:
            return variant.merge_safe(layer, ADAPTER, weight)
        except (RuntimeError, NotImplementedError) as error:
            first = first_line(error)
            raise ModelError(
                f"PEFT does not merge this adapter: {first}", hint="serve the adapter beside its base instead"
            ) from error


@contextmanager
def _filled(layer: torch.nn.Module, weight: torch.Tensor, delta: Delta, adapted: Adapted) -> Iterator[None]:
    """Inside, the layer has its tensors; afterwards they are on the meta device again."""
    import torch

    base: Any = layer.get_base_layer()  # pyright: ignore[reportCallIssue]
    base = base.token_adapter.get_base_layer() if hasattr(base, "token_adapter") else base
    places = [(base, "weight", weight)]
    places += [(owner, key, tensors.read(adapted.files[name]).float()) for name, (owner, key) in delta.parts.items()]
    values = [owner._parameters[key] for owner, key, _ in places]
    try:
        for owner, key, value in places:
            owner._parameters[key] = torch.nn.Parameter(value, requires_grad=False)
        with torch.no_grad():
            yield
    finally:
        for (owner, key, _), old in zip(places, values, strict=True):
            owner._parameters[key] = old
