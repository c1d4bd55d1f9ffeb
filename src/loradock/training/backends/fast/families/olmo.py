"""OLMo 2 and 3, EXAONE 4: a norm after each half and none before; some layers have windows, some turn nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import (
    activation_of,
    common_model,
    decoder_of,
    dense_of,
    norm_of,
    split_attention,
)
from loradock.training.backends.fast.families.parts import AttentionParts, LayerParts, ModelParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    has_tables = isinstance(decoder.rotary_emb.rope_type, dict)
    layers = [_layer(layer, decoder.config, has_tables=has_tables) for layer in decoder.layers]
    kinds = sorted(set(decoder.config.layer_types)) if has_tables else ()
    return common_model(model, positions=positions, layers=layers, kinds=kinds)


def _layer(layer: Any, config: Any, *, has_tables: bool) -> LayerParts:
    mixer = _attention(layer.self_attn, config)
    return LayerParts(
        mixer_norm=None,
        mixer=replace(mixer, rotary=layer.self_attn.attention_type) if has_tables else mixer,
        mixer_out_norm=norm_of(layer.post_attention_layernorm),
        mlp_norm=None,
        mlp=dense_of(layer.mlp, activation=activation_of(config.hidden_act)),
        mlp_out_norm=norm_of(layer.post_feedforward_layernorm),
    )


def _attention(attention: Any, config: Any) -> AttentionParts:
    window, is_sliding = getattr(attention, "sliding_window", None), getattr(attention, "is_sliding", None)
    if is_sliding is None:
        return split_attention(attention, config, window=window, has_head_norms=True)
    mixer = split_attention(attention, config, window=window if is_sliding else None, has_head_norms=True)
    return mixer if window is None or is_sliding else replace(mixer, rotary=None)  # EXAONE 4
