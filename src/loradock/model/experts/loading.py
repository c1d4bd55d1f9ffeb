"""Experts become NF4 while transformers reads a base: one 3-D tensor at a time is whole, as it comes from the files."""

from __future__ import annotations

from functools import cache
from typing import Any

from loradock.model.experts import layout

QUANTIZER = "bitsandbytes_4bit"
"""transformers' name for the quantiser in whose place ours is put."""


def install(_: Any) -> None:
    """Before a base is built: let transformers' 4-bit quantiser take experts, too. It lasts as long as the process."""
    from transformers.quantizers import auto

    auto.AUTO_QUANTIZER_MAPPING[QUANTIZER] = quantizer_class()


def is_of_experts(model: Any, name: str) -> bool:
    """Whether a parameter is a matrix of experts that are computed here."""
    path, _, key = name.rpartition(".")
    module = model.get_submodule(path)
    return layout.is_served(module) and key in layout.keys(module)


@cache
def quantizer_class() -> Any:
    """transformers' quantiser by bitsandbytes, which takes linear layers alone, with experts."""
    import torch
    from transformers.integrations.bitsandbytes import Bnb4bitQuantize
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

    from loradock.model.experts.storage import NF4Experts

    class Quantize(Bnb4bitQuantize):
        """Experts expert by expert; all else as transformers does it."""

        def convert(self, input_dict: Any, full_layer_name: Any = None, model: Any = None, **kwargs: Any) -> Any:
            """{name: parameter} of {name: tensor as it was read}."""
            results: dict[str, Any] = {}
            for name, value in input_dict.items():
                if is_of_experts(model, name):
                    tensor = (value[0] if isinstance(value, list) else value).detach()
                    double = self.hf_quantizer.quantization_config.bnb_4bit_use_double_quant
                    quantised = NF4Experts.quantised(tensor, double_quant=double)
                    results[name] = torch.nn.Parameter(quantised, requires_grad=False)
                else:
                    results |= super().convert({name: value}, full_layer_name, model, **kwargs)
            return results

    class Quantizer(Bnb4BitHfQuantizer):
        """Linear layers and fused experts; routers, a trace of the weights that decides on all others, stay whole."""

        def get_modules_to_not_convert(self, model: Any, *args: Any, **kwargs: Any) -> list[str]:
            """Names of linear layers that are left as they are."""
            return [*super().get_modules_to_not_convert(model, *args, **kwargs), *layout.routers(model)]

        def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
            """Whether the parameter of this name becomes NF4."""
            return is_of_experts(model, param_name) or super().param_needs_quantization(model, param_name, **kwargs)

        def get_quantize_ops(self) -> Any:
            """What makes it that."""
            return Quantize(self)

    return Quantizer
