"""PEFT's adapters on 3-D parameters, computed beside the experts' products in the place of dense sums of both.

PEFT adds the product of the factors to all experts of a layer, in the memory of the whole layer in 16 bit. Where
`model.experts.forward` computes the experts, it is handed the factors instead: same tensors, same names in the file.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from loradock.errors import ModelError

CONVERSION = "peft.utils.transformers_weight_conversion"
"""PEFT 0.21's rules for adapters of transformers 4, where each expert was a module."""


def taken_for_experts(model: Any) -> frozenset[str]:
    """Names of layers that PEFT takes for a router's or experts' in this kind of mixture, whatever layer has them.

    Of Mixtral, Qwen3-MoE, GLM-4, DeepSeek and their like it reads `gate_proj` as what transformers 4 called so: the
    experts. A shared expert's or a dense layer's linear layer of that name cannot be targeted there, by no way of
    writing it (`_convert_peft_config_moe`): its adapter would not be found again.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    kind = getattr(model.config, "model_type", None)
    if kind is None or get_checkpoint_conversion_mapping(kind) is None:
        return frozenset()
    rules = importlib.import_module(CONVERSION)
    pattern = rules._MODEL_TO_CONVERSION_PATTERN.get(kind)
    is_converted = pattern in rules._MOE_FUSED_TARGETS
    return frozenset(rules._MOE_TARGET_MODULE_MAPPING.get(pattern, {})) if is_converted else frozenset()


@cache
def install() -> None:
    """Before adapters are put on a model: let PEFT's layer hand over its factors. It lasts as long as the process."""
    from peft.tuners.lora.layer import ParamWrapper

    from loradock.model.experts import forward

    alone: Any = ParamWrapper._activate_lora

    @contextmanager
    def activate(wrapper: Any, active_adapters: list[str]) -> Iterator[None]:
        """Inside, the layer's forward has the adapter on one of its matrices."""
        experts = wrapper.get_base_layer()
        if not forward.is_installed(experts):
            with alone(wrapper, active_adapters):
                yield
            return
        names = [name for name in active_adapters if name in wrapper.lora_A]
        if len(names) > 1:
            raise ModelError("several adapters are active on a mixture's experts", hint="activate one of them")
        if not names:
            yield
            return
        with forward.adapted(experts, wrapper.parameter_name, factors(wrapper, names[0])):
            yield

    ParamWrapper._activate_lora = activate  # pyright: ignore[reportAttributeAccessIssue]  the same by position


def factors(wrapper: Any, adapter: str) -> Any:
    """Those of one adapter by expert. PEFT's order: A is [experts x rank, inputs], B is [outputs, rank x experts]."""
    from loradock.model.experts.forward import Factors

    a, b = wrapper.lora_A[adapter].weight, wrapper.lora_B[adapter].weight
    experts = wrapper.num_experts
    a, b = a.view(experts, -1, a.shape[1]), b.view(b.shape[0], -1, experts).permute(2, 0, 1)
    if is_read_across(wrapper):
        a, b = b.transpose(1, 2), a.transpose(1, 2)
    return Factors(a=a.unbind(0), b=b.unbind(0), scaling=wrapper.scaling[adapter])


def lies_as_stored(wrapper: Any) -> bool:
    """Whether PEFT's B times A is the change of an expert's matrix as it is stored; else that of its transpose."""
    return wrapper._did_swap_in_out_features


def is_read_across(wrapper: Any) -> bool:
    """Whether PEFT takes a transposed matrix for one that is not, so that its A holds outputs and its B inputs.

    It asks the class, and Llama 4's does not say. The adapter's file is what plain PEFT makes of that class.
    """
    from loradock.model.experts import layout

    return lies_as_stored(wrapper) and layout.of(wrapper.get_base_layer()).is_transposed
