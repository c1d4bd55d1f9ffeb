"""Phi-3: one matrix for queries, keys and values, one for gate and up; part of a head may be rotated."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import (
    activation_of,
    common_model,
    decoder_of,
    heads_of,
    norm_of,
    rule_of,
)
from loradock.training.backends.fast.families.parts import AttentionParts, DenseParts, LayerParts, ModelParts, Unfit


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    if config.resid_pdrop or config.embd_pdrop:
        raise Unfit("it drops hidden states at random (resid_pdrop, embd_pdrop)")
    layers = [_layer(layer, config) for layer in decoder_of(model).layers]
    return common_model(model, positions=positions, layers=layers)


def _layer(layer: Any, config: Any) -> LayerParts:
    attention, mlp = layer.self_attn, layer.mlp
    return LayerParts(
        mixer_norm=norm_of(layer.input_layernorm),
        mixer=AttentionParts(
            qkv=(attention.qkv_proj,),
            heads=heads_of(attention, config),
            rule=rule_of(attention, window=config.sliding_window),
            output=attention.o_proj,
        ),
        mlp_norm=norm_of(layer.post_attention_layernorm),
        mlp=DenseParts(gate_up=(mlp.gate_up_proj,), activation=activation_of(config.hidden_act), down=mlp.down_proj),
    )
