"""Gemma 4's text: norms of values, keys that are values too, wider heads in some layers, scaled layers.

Of its small models the last layers attend to keys and values of others, and each layer reads more of the token itself;
one has experts beside each MLP.
"""

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
from loradock.training.backends.fast.families.parts import (
    AttentionParts,
    BesideParts,
    GatedInputParts,
    LayerParts,
    MixtureParts,
    ModelParts,
    Norm,
    RouterParts,
    TokenInputParts,
    Unfit,
)
from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.token_rows import bare


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    config = decoder.config
    if config.use_bidirectional_attention == "all":
        raise Unfit("its attention looks ahead")
    reused = {layer.self_attn.layer_type for layer in decoder.layers if _reads(layer.self_attn)}
    layers = [_layer(layer, config, reused=reused) for layer in decoder.layers]
    kinds = sorted(set(config.layer_types))
    whole = common_model(model, positions=positions, layers=layers, kinds=kinds)
    if whole.embedding_rows and _has_inputs(layers):
        raise Unfit("rows of new tokens are trained, of which its layers read more than one")
    return replace(
        whole,
        embedding_scale=_scale_of(bare(decoder.embed_tokens)),
        softcap=config.final_logit_softcapping,
        token_inputs=_token_inputs(decoder) if _has_inputs(layers) else None,
    )


def _has_inputs(layers: list[LayerParts]) -> bool:
    return any(layer.gated_input is not None for layer in layers)


def _scale_of(embedding: Any) -> float:
    return float(embedding.embed_scale.to(embedding.weight.dtype))


def _token_inputs(decoder: Any) -> TokenInputParts:
    table = decoder.embed_tokens_per_layer
    return TokenInputParts(
        projection=decoder.per_layer_model_projection,
        projection_scale=float(decoder.per_layer_model_projection_scale),
        norm=norm_of(decoder.per_layer_projection_norm),
        table=table.weight.detach(),
        table_scale=_scale_of(table),
        scale=float(decoder.per_layer_input_scale),
    )


def _layer(layer: Any, config: Any, *, reused: set[str]) -> LayerParts:
    activation = activation_of(config.hidden_activation)
    parts = LayerParts(
        mixer_norm=norm_of(layer.input_layernorm),
        mixer=_attention(layer.self_attn, config, reused=reused),
        mixer_out_norm=norm_of(layer.post_attention_layernorm),
        mlp_norm=norm_of(layer.pre_feedforward_layernorm),
        mlp=dense_of(layer.mlp, activation=activation),
        mlp_out_norm=norm_of(layer.post_feedforward_layernorm),
        scale=float(layer.layer_scalar),
    )
    if getattr(layer, "enable_moe_block", False):
        parts = replace(parts, mlp_norm=None, mlp=_beside_experts(layer, activation))
    if not getattr(layer, "hidden_size_per_layer_input", 0):
        return parts
    gate, output = layer.per_layer_input_gate, layer.per_layer_projection
    return replace(
        parts,
        gated_input=GatedInputParts(gate=gate, output=output, activation=activation),
        gated_input_norm=norm_of(layer.post_per_layer_input_norm),
    )


def _beside_experts(layer: Any, activation: Activation) -> MixtureParts:
    router = layer.router
    scale = router.scale.detach().float() * router.scalar_root_size
    return MixtureParts(
        router=RouterParts(
            weight=router.proj.weight.detach(),
            active=router.config.top_k_experts,
            scale=router.per_expert_scale.detach().float(),
        ),
        experts=layer.experts,
        activation=activation,
        beside=BesideParts(
            dense=dense_of(layer.mlp, activation=activation),
            norm=norm_of(layer.pre_feedforward_layernorm),
            out_norm=norm_of(layer.post_feedforward_layernorm_1),
            router_norm=Norm(weight=scale, epsilon=float(router.eps)),
            experts_norm=norm_of(layer.pre_feedforward_layernorm_2),
            experts_out_norm=norm_of(layer.post_feedforward_layernorm_2),
        ),
    )


def _reads(attention: Any) -> bool:
    return bool(getattr(attention, "is_kv_shared_layer", False))


def _attention(attention: Any, config: Any, *, reused: set[str]) -> AttentionParts:
    size, kind = attention.head_dim, attention.layer_type
    queries = AttentionParts(
        qkv=(attention.q_proj,),
        heads=(config.num_attention_heads, 0, size),
        rule=rule_of(attention, window=attention.sliding_window),
        output=attention.o_proj,
        query_norm=norm_of(attention.q_norm),
        rotary=kind,
    )
    if _reads(attention):
        return replace(queries, reads=kind)
    values = attention.v_proj
    ones = torch.ones(size, dtype=torch.float32, device=attention.q_norm.weight.device)
    is_left = kind in reused and getattr(attention, "store_full_length_kv", False)
    return replace(
        queries,
        qkv=(attention.q_proj, attention.k_proj) if values is None else (attention.q_proj, attention.k_proj, values),
        heads=(config.num_attention_heads, attention.k_proj.out_features // size, size),
        leaves=kind if is_left else None,
        key_norm=norm_of(attention.k_norm),
        value_norm=Norm(weight=ones, epsilon=float(attention.v_norm.eps)),
        has_values=values is not None,
    )
