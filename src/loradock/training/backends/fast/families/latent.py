"""DeepSeek V2 and V3, GLM-4.7 Flash and Mistral 4: attention over latents, before experts; Youtu-LLM: before an MLP.

DeepSeek V2's rotary module gives complex numbers, its routers weigh by an unnormed softmax; Mistral 4's far queries
have a temperature.
"""

from __future__ import annotations

from typing import Any

import torch

from loradock.training.backends.fast.families import glm
from loradock.training.backends.fast.families.base import (
    answer_of,
    common_model,
    decoder_of,
    norm_of,
    rule_of,
    split_layer,
    tables_of,
)
from loradock.training.backends.fast.families.mistral import temperatures
from loradock.training.backends.fast.families.parts import (
    LatentHeads,
    LatentParts,
    ModelParts,
    RouterParts,
    Tables,
    Unfit,
)

GREEDY = "greedy"
"""The one of DeepSeek V2's ways to choose experts that looks at no groups."""


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    config = decoder.config
    tables = _tables(decoder, positions=positions)
    turned, angles = config.qk_rope_head_dim, tables[""][0].shape[1]
    if angles != turned:
        raise Unfit(f"{turned} columns of a key turn, and its rotary embedding has angles for {angles}")
    scale = temperatures(config, positions=positions, device=next(iter(decoder.rotary_emb.buffers())).device)
    layers = [
        split_layer(
            layer,
            config,
            activation=config.hidden_act,
            router=_router,
            mixer=_attention(layer.self_attn, config, query_scale=scale),
        )
        for layer in decoder.layers
    ]
    return common_model(model, positions=positions, layers=layers, tables=tables)


def _tables(decoder: Any, *, positions: int) -> Tables:
    if decoder.config.model_type != "deepseek_v2":
        return tables_of(decoder.rotary_emb, positions=positions)
    turns = answer_of(decoder.rotary_emb, positions=positions)[0]
    return {"": (turns.real.repeat(1, 2).contiguous(), turns.imag.repeat(1, 2).contiguous())}


def _attention(attention: Any, config: Any, *, query_scale: torch.Tensor | None) -> LatentParts:
    still, turned, values = attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.v_head_dim
    if values > still + turned:
        raise Unfit(f"its values ({values}) are wider than its keys ({still + turned})")
    has_latent = attention.q_lora_rank is not None
    first = attention.q_a_proj if has_latent else attention.q_proj
    return LatentParts(
        inputs=(first, attention.kv_a_proj_with_mqa),
        query_norm=norm_of(attention.q_a_layernorm) if has_latent else None,
        queries=attention.q_b_proj if has_latent else None,
        latent_norm=norm_of(attention.kv_a_layernorm),
        keys_values=attention.kv_b_proj,
        output=attention.o_proj,
        heads=LatentHeads(count=attention.num_heads, still=still, turned=turned, values=values),
        rule=rule_of(attention, window=None),
        is_interleaved=getattr(config, "rope_interleave", True),
        query_scale=query_scale,
    )


def _router(mlp: Any) -> RouterParts:
    router = mlp.gate
    if hasattr(router, "e_score_correction_bias"):
        return glm.router_of(mlp)
    if getattr(router, "topk_method", GREEDY) != GREEDY:
        raise Unfit(f"its routers choose experts by {router.topk_method!r}")
    has_groups = not hasattr(router, "topk_method") and router.topk_group < router.num_group
    return RouterParts(
        weight=router.weight.detach(),
        active=router.top_k,
        groups=(router.num_group, router.topk_group) if has_groups else None,
        is_normalised=getattr(router, "norm_topk_prob", False),
        floor=glm.FLOOR,
        factor=float(router.routed_scaling_factor),
        is_float32=hasattr(router, "topk_method"),
    )
