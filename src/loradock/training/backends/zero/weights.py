"""Weights under ZeRO-3: cut over the processes as they come, whole for reading; the adapter whole again at the end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from bitsandbytes.nn import Linear4bit
from peft.tuners.lora.layer import ParamWrapper

from loradock.catalog.storages import NF4
from loradock.model.experts import column
from loradock.model.experts.layout import PART
from loradock.model.spread import GUARD, gathered, lay_experts_out
from loradock.training.backends.zero.sharding import load, replaced


def make_known(settings: Any) -> Any:
    """Tell transformers and TRL of ZeRO-3, while what is returned lives: they gather a weight before they read it."""
    from transformers.integrations import HfDeepSpeedConfig

    return HfDeepSpeedConfig(settings)


def cut(model: Any, settings: Any, *, device: torch.device) -> None:
    """Give DeepSpeed, by its own `settings`, the weights of a model that was read part by part (`model.spread`).

    On every process one weight at a time is whole, on `device`, so that the base need not fit there.
    """
    lay_experts_out(model, comes_again=True)
    load().zero.Init(module=Arriving(model, device=device), config_dict_or_path=settings)
    for layer in (module for module in model.modules() if isinstance(module, ParamWrapper)):
        for factors in (layer.lora_A, layer.lora_B):
            for factor in factors.values():  # read by the layer itself, and gathered for who reads
                load().zero.register_external_parameter(layer, factor.weight)
    getattr(model.get_base_model(), GUARD).remove()


class Arriving(torch.nn.Module):
    """A model whose weights are put together of their parts as they are asked for, one after the other."""

    def __init__(self, model: Any, *, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.device = device

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Each parameter, whole. DeepSpeed cuts one before it asks for the next; every process takes part."""
        for parameter in self.model.parameters(recurse):
            part = parameter.__dict__.pop(PART, None)
            if part is not None:
                parameter.data = gathered(part.to(self.device), shape=parameter.shape)
            yield parameter


def check_packed(model: Any, *, mode: str) -> None:
    """EnvironmentUnfit where a weight that was quantised is not held as NF4 any more, once it is cut."""
    for name, layer in model.named_modules():
        for key, lies in column.of(layer).items():
            numbers, size_bytes = getattr(layer, key).ds_numel, lies.numbers
            if numbers != size_bytes:
                raise replaced(mode, f"{name}.{key} is {numbers:,} bytes, and its experts in NF4 take {size_bytes:,}")
        if not isinstance(layer, Linear4bit):
            continue
        weight, state = cast("Any", layer.weight), cast("Any", layer.quant_state)
        held, weights = weight.ds_numel * weight.ds_tensor.element_size(), state.shape.numel()
        if held != math.ceil(weights * NF4.code_bits / 8):
            raise replaced(mode, f"{name} has {weights:,} weights in {held:,} bytes, and NF4 takes half a byte each")


@contextlib.contextmanager
def whole(parameters: Sequence[Any], *, written: bool = False) -> Iterator[None]:
    """Inside, these parameters are whole on every process, for reading; `written`: what rank 0 writes is kept."""
    if not any(hasattr(each, "ds_tensor") for each in parameters):
        yield
        return
    with load().zero.GatheredParameters(list(parameters), modifier_rank=0 if written else None):
        yield


def keep_whole(parameters: Sequence[Any]) -> None:
    """Make these parameters whole on every process for good: what is left of the run reads and writes them."""
    cut = [each for each in parameters if hasattr(each, "ds_tensor")]
    if cut:
        cut[0].all_gather(param_list=cut)
    for each in cut:
        each.ds_persist = True
