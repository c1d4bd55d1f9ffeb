"""gpt-oss: a sink beside the scores of each head, windows in some layers, experts with biases and a clamped gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from loradock.training.backends.fast.families.base import common_model, decoder_of, norm_of, split_attention
from loradock.training.backends.fast.families.parts import Clamp, LayerParts, MixtureParts, ModelParts, RouterParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    layers = [_layer(layer, config) for layer in decoder_of(model).layers]
    whole = common_model(model, positions=positions, layers=layers)
    # Its tables hold each angle once, those of all others twice.
    tables = {
        name: (torch.cat([cos, cos], dim=1), torch.cat([sin, sin], dim=1)) for name, (cos, sin) in whole.tables.items()
    }
    return replace(whole, tables=tables)


def _layer(layer: Any, config: Any) -> LayerParts:
    attention, mlp = layer.self_attn, layer.mlp
    experts = mlp.experts
    while hasattr(experts, "base_layer"):
        experts = experts.base_layer
    mixer = split_attention(attention, config, window=attention.sliding_window)
    return LayerParts(
        mixer_norm=norm_of(layer.input_layernorm),
        mixer=replace(mixer, rule=replace(mixer.rule, sinks=attention.sinks.detach())),
        mlp_norm=norm_of(layer.post_attention_layernorm),
        mlp=MixtureParts(
            router=RouterParts(
                weight=mlp.router.weight.detach(),
                bias=mlp.router.bias.detach(),
                active=mlp.router.top_k,
                scores="logits",
            ),
            experts=mlp.experts,
            activation=Clamp(alpha=float(experts.alpha), limit=float(experts.limit)),
            apply_gate=GptOssExperts._apply_gate,
        ),
    )
