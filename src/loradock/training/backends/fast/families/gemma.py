"""Gemma 1 to 3 (text): norms of 1 + weight, a scaled embedding; from 2 on norms after each half, windows, soft caps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import (
    common_model,
    decoder_of,
    norm_of,
    rule_of,
    split_attention,
    split_layer,
)
from loradock.training.backends.fast.families.parts import LayerParts, ModelParts, Unfit
from loradock.training.backends.fast.token_rows import bare


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    config = decoder.config
    if getattr(config, "use_bidirectional_attention", False):
        raise Unfit("its attention looks ahead")
    has_tables = isinstance(decoder.rotary_emb.rope_type, dict)
    layers = [_layer(layer, config, has_tables=has_tables) for layer in decoder.layers]
    kinds = sorted(set(config.layer_types)) if has_tables else ()
    whole = common_model(model, positions=positions, layers=layers, offset=True, kinds=kinds)
    embedding = bare(decoder.embed_tokens)
    return replace(
        whole,
        embedding_scale=float(embedding.embed_scale.to(embedding.weight.dtype)),
        softcap=getattr(config, "final_logit_softcapping", None),
    )


def _layer(layer: Any, config: Any, *, has_tables: bool) -> LayerParts:
    attention = layer.self_attn
    window = getattr(attention, "sliding_window", None)
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    softcap = getattr(config, "attn_logit_softcapping", None)
    mixer = replace(
        split_attention(attention, config, window=window, has_head_norms=hasattr(attention, "q_norm"), offset=True),
        rule=rule_of(attention, window=window, softcap=softcap),
        rotary=attention.layer_type if has_tables else "",
    )
    parts = split_layer(layer, config, activation=activation, offset=True, mixer=mixer)
    if not hasattr(layer, "pre_feedforward_layernorm"):
        return parts
    return replace(
        parts,
        mixer_out_norm=norm_of(layer.post_attention_layernorm, offset=True),
        mlp_norm=norm_of(layer.pre_feedforward_layernorm, offset=True),
        mlp_out_norm=norm_of(layer.post_feedforward_layernorm, offset=True),
    )
