"""LFM2: a short convolution between two gates in most layers, attention with a norm of each head in the others."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.attention.base import Rule
from loradock.training.backends.fast.families.base import common_model, decoder_of, heads_of, norm_of, recurrent_of
from loradock.training.backends.fast.families.parts import AttentionParts, DenseParts, LayerParts, ModelParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    layers = [_layer(layer, decoder.config) for layer in decoder.layers]
    return common_model(model, positions=positions, layers=layers, norm=norm_of(decoder.embedding_norm))


def _layer(layer: Any, config: Any) -> LayerParts:
    mlp = layer.feed_forward
    return LayerParts(
        mixer_norm=norm_of(layer.operator_norm),
        mixer=_attention(layer.self_attn, config)
        if layer.is_attention_layer
        else recurrent_of(layer.conv, inputs=("in_proj",), output="out_proj"),
        mlp_norm=norm_of(layer.ffn_norm),
        mlp=DenseParts(gate_up=(mlp.w1, mlp.w3), activation="silu", down=mlp.w2),
    )


def _attention(attention: Any, config: Any) -> AttentionParts:
    return AttentionParts(
        qkv=(attention.q_proj, attention.k_proj, attention.v_proj),
        heads=heads_of(attention, config),
        rule=Rule(scale=float(attention.scaling), window=None, softcap=None),  # it never drops any
        output=attention.out_proj,
        query_norm=norm_of(attention.q_layernorm),
        key_norm=norm_of(attention.k_layernorm),
    )
