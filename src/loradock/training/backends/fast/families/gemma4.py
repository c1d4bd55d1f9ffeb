"""Gemma 4's dense text: norms of values, keys that are values too, wider heads in some layers, scaled layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from loradock.training.backends.fast.families.base import (
    activation_of,
    common_model,
    decoder_of,
    dense_of,
    norm_of,
    rule_of,
)
from loradock.training.backends.fast.families.parts import AttentionParts, LayerParts, ModelParts, Norm, Unfit
from loradock.training.backends.fast.token_rows import bare


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    config = decoder.config
    if getattr(config, "hidden_size_per_layer_input", 0) or getattr(config, "num_kv_shared_layers", 0):
        raise Unfit("its layers read embeddings of their own, or keys and values of others")
    if getattr(config, "enable_moe_block", False):
        raise Unfit("it has experts beside a dense MLP in each layer")
    if config.use_bidirectional_attention == "all":
        raise Unfit("its attention looks ahead")
    layers = [_layer(layer, config) for layer in decoder.layers]
    kinds = sorted(set(config.layer_types))
    whole = common_model(model, positions=positions, layers=layers, kinds=kinds)
    embedding = bare(decoder.embed_tokens)
    return replace(
        whole,
        embedding_scale=float(embedding.embed_scale.to(embedding.weight.dtype)),
        softcap=config.final_logit_softcapping,
    )


def _layer(layer: Any, config: Any) -> LayerParts:
    return LayerParts(
        mixer_norm=norm_of(layer.input_layernorm),
        mixer=_attention(layer.self_attn, config),
        mixer_out_norm=norm_of(layer.post_attention_layernorm),
        mlp_norm=norm_of(layer.pre_feedforward_layernorm),
        mlp=dense_of(layer.mlp, activation=activation_of(config.hidden_activation)),
        mlp_out_norm=norm_of(layer.post_feedforward_layernorm),
        scale=float(layer.layer_scalar),
    )


def _attention(attention: Any, config: Any) -> AttentionParts:
    size, values = attention.head_dim, attention.v_proj
    ones = torch.ones(size, dtype=torch.float32, device=attention.q_norm.weight.device)
    return AttentionParts(
        qkv=(attention.q_proj, attention.k_proj) if values is None else (attention.q_proj, attention.k_proj, values),
        heads=(config.num_attention_heads, attention.k_proj.out_features // size, size),
        rule=rule_of(attention, window=attention.sliding_window),
        output=attention.o_proj,
        query_norm=norm_of(attention.q_norm),
        key_norm=norm_of(attention.k_norm),
        value_norm=Norm(weight=ones, epsilon=float(attention.v_norm.eps)),
        has_values=values is not None,
        rotary=attention.layer_type,
    )
