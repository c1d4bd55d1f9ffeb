"""A tiny model with the attention of the configured one, quantised as a run does it, and its float64 twin."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loradock.env_check.compute.exact_attention import LENGTH, LONGEST_WINDOW, Case, attend
from loradock.env_check.compute.places import Device
from loradock.model import nf4
from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    import torch

    from loradock.config.sections.model import ModelConfig

VOCABULARY, INNER, LAYERS, RANK = 256, 128, 2, 8
# Of every weight, times the root of the hidden size. Scores before the softmax spread as in a trained model, at any
# width; with the usual 0.02 every token would weigh the same, and with more a step would multiply the roundings.
SPREAD = 0.96
MOST_GROUP = 8
EXACT = "loradock_float64"


def heads(shape: AttentionShape) -> tuple[int, int]:
    """(query heads, key-value heads): grouped as the model's, few, and together as wide as whole NF4 blocks.

    One key-value head stays one; where the width is not a multiple of the block, there are more heads.
    """
    group = max(1, min(MOST_GROUP, shape.heads // shape.key_value_heads))
    shared = min(2, shape.key_value_heads)
    times = nf4.BLOCK // math.gcd(nf4.BLOCK, shared * group * shape.head_size)
    return shared * group * times, shared if shared == 1 else shared * times


def architecture(shape: AttentionShape) -> Any:
    """The transformers config: Gemma 2 where scores are capped, Mistral where there is a window, else Llama.

    The hidden size is a multiple of the heads, which transformers insists on, and of NF4's block.
    """
    from transformers import Gemma2Config, LlamaConfig, MistralConfig

    query_heads, key_value_heads = heads(shape)
    hidden = math.lcm(nf4.BLOCK, query_heads)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": query_heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": shape.head_size,
        "initializer_range": SPREAD * hidden**-0.5,
        "max_position_embeddings": 2 * LENGTH,
        "tie_word_embeddings": False,
        "use_cache": False,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    window = min(shape.window, LONGEST_WINDOW) if shape.window else None
    if shape.softcap:
        return Gemma2Config(
            **settings,
            attn_logit_softcapping=shape.softcap,
            final_logit_softcapping=None,
            query_pre_attn_scalar=shape.head_size,
            sliding_window=window or 2 * LENGTH,
        )
    if window:
        return MistralConfig(**settings, sliding_window=window)
    return LlamaConfig(**settings)


def make(shape: AttentionShape, folder: Path, place: Device) -> dict[str, torch.Tensor]:
    """Write a random model to the folder, in the place's dtype; returns its weights by name."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(architecture(shape)).to(place.torch_dtype)
    for name, parameter in model.named_parameters():
        if is_inner(name, parameter):
            parameter.data = nf4.clear_of_ties(parameter.data)
    model.save_pretrained(folder)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def is_inner(name: str, weight: torch.Tensor) -> bool:
    """True for the weights that quantisation reaches."""
    return weight.dim() == 2 and "embed" not in name and "lm_head" not in name


def adapted(folder: Path, model_config: ModelConfig, place: Device) -> Any:
    """The model of the folder as a run loads it, with adapters in float32, the same ones whatever the storage."""
    import torch

    return with_adapters(loaded(folder, model_config, place), torch.float32)


def loaded(folder: Path, model_config: ModelConfig, place: Device) -> Any:
    """The model of the folder as a run loads it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from loradock.model.load import quantization
    from loradock.model.patches import BUILDING, PATCHES

    config = AutoConfig.from_pretrained(folder)
    for patch in BUILDING:
        patch(config)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        quantization_config=quantization(model_config, place.torch_dtype),
        dtype=place.torch_dtype,
        device_map={"": place.device},
        attn_implementation="eager",
        local_files_only=True,
    )
    for patch in PATCHES:
        patch(model)
    return model


def with_adapters(model: Any, dtype: torch.dtype) -> Any:
    """Adapters on every inner layer of a frozen model: random, from a seed of their own."""
    from peft import LoraConfig, get_peft_model

    model.requires_grad_(False)
    settings = LoraConfig(
        r=RANK, lora_alpha=RANK, lora_dropout=0.0, target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
    )
    return drawn(get_peft_model(model, settings), dtype)


def drawn(adapted: Any, dtype: torch.dtype) -> Any:
    """The same model, its adapters random in this dtype."""
    import torch

    draw = torch.Generator().manual_seed(9)
    for parameter in adapters(adapted):
        matrix = torch.randn(parameter.shape, generator=draw) * parameter.shape[1] ** -0.5 / 2
        parameter.data = matrix.to(device=parameter.device, dtype=dtype)
    return adapted


def adapters(model: Any) -> list[Any]:
    """The trainable weights."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def twin(shape: AttentionShape, weights: dict[str, torch.Tensor], case: Case, *, is_quantised: bool) -> Any:
    """The same model on the CPU in float64, with the attention written out here and weights as the published NF4."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

    def exact(module: Any, query: Any, key: Any, value: Any, mask: Any, **settings: Any) -> Any:
        visible = replace(case, window=settings.get("sliding_window")).allowed()
        return attend(query, key, value, visible, softcap=shape.softcap).transpose(1, 2).contiguous(), None

    AttentionInterface.register(EXACT, exact)
    AttentionMaskInterface.register(EXACT, lambda *_, **__: None)
    model = AutoModelForCausalLM.from_config(architecture(shape), attn_implementation=EXACT).to(torch.float64)
    stored = {
        name: nf4.rebuilt(weight) if is_quantised and is_inner(name, weight) else weight.double()
        for name, weight in weights.items()
    }
    model.load_state_dict(stored)
    return with_adapters(model, torch.float64)


def batch(case: Case, device: str) -> dict[str, torch.Tensor]:
    """input_ids, position_ids that start again with each document, and labels (-100 where nothing is to be learned)."""
    import torch

    ids = torch.randint(3, VOCABULARY, (case.rows, LENGTH), generator=torch.Generator().manual_seed(10))
    positions = torch.zeros(case.rows, LENGTH, dtype=torch.long)
    labels = ids.clone()
    for row, first, length in case.documents:
        positions[row, first : first + length] = torch.arange(length)
        labels[row, first] = -100
    return {name: entry.to(device) for name, entry in (("ids", ids), ("positions", positions), ("labels", labels))}


def loss_of(model: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the next token over the labels."""
    import torch

    logits = model(input_ids=tensors["ids"], position_ids=tensors["positions"], use_cache=False).logits
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide[:, :-1].flatten(0, 1), tensors["labels"][:, 1:].flatten())
