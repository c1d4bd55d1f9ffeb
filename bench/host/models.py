"""The models whose host cost is measured: real layers of transformers, bitsandbytes and PEFT, of a published shape.

On a card that need not be there (fake tensors) they have their full widths; on a CPU they are as narrow as they can be,
so that computing takes next to no time and what is left is the work of the host.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from bench.memory.models import nf4_state

RANK = 16
NARROW: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
}
"""In the place of a model's own widths; its depth and its kind of layer stay. No heads share keys, as the kernel for
CPUs would make copies of them that the one for cards does not."""


def narrowed(values: dict[str, Any]) -> dict[str, Any]:
    """A config's values with the least widths."""
    return {**values, **NARROW}


def adapted(values: dict[str, Any], *, dtype: torch.dtype, device: str, adapters: torch.dtype) -> Any:
    """A PeftModel of this config: NF4 with double quantisation, adapters of rank 16 on all linear layers but the head.

    `adapters` is the dtype of the trainable weights. On any device but the CPU it has to be called in a FakeTensorMode.
    """
    with unset_fake_temporarily():
        model = built(values, dtype=dtype, device="cpu" if device == "cpu" else "meta", adapters=adapters)
    if device != "cpu":
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                tensors.update({name: on_card(each, device) for name, each in tensors.items() if each is not None})
    return model


def built(values: dict[str, Any], *, dtype: torch.dtype, device: str, adapters: torch.dtype) -> Any:
    """The same on the CPU or on meta."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=dtype)
        model.requires_grad_(False)
        quantise(model, dtype=dtype)
        model.is_loaded_in_4bit = True
        peft = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    for parameter in peft.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(adapters)
    return peft


def quantise(model: Any, *, dtype: torch.dtype) -> None:
    """Put NF4 layers in the place of all linear ones but the head."""
    from bitsandbytes.nn import Linear4bit

    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, torch.nn.Linear) and module is not head:
                layer = Linear4bit(1, 1, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta")
                layer.in_features, layer.out_features = module.in_features, module.out_features
                layer.support_avx512bf16_for_cpu = False
                layer.weight = frozen(module.weight, dtype=dtype)
                setattr(parent, name, layer)


def frozen(weight: torch.Tensor, *, dtype: torch.dtype) -> Any:
    """The NF4 weight of a layer: quantised on a CPU, without content on meta."""
    from bitsandbytes import functional
    from bitsandbytes.nn.modules import Params4bit

    if weight.device.type == "cpu":
        packed, state = functional.quantize_4bit(weight.data, quant_type="nf4", compress_statistics=True)
    else:
        packed = torch.empty(weight.numel() // 2, 1, dtype=torch.uint8, device=weight.device)
        state = nf4_state(weight.shape, dtype=dtype, device=weight.device)
    return Params4bit(packed, requires_grad=False, quant_state=state, quant_type="nf4", bnb_quantized=True)


def on_card(tensor: Any, device: str) -> Any:
    """A fake tensor on the card in the place of one on meta.

    One cannot be of bitsandbytes' own class of parameters, which is an ordinary one with more attributes.
    """
    fake: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if isinstance(tensor, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    if hasattr(tensor, "quant_state"):
        shape, dtype = tensor.quant_state.shape, tensor.quant_state.dtype
        fake.quant_state = nf4_state(shape, dtype=dtype, device=fake.device)
        fake.quant_type, fake.compress_statistics, fake.bnb_quantized = "nf4", True, True
    return fake
