"""Mixtures of DeepSeek's and GLM's build: numbers of the file, and what llama.cpp has built in."""

from __future__ import annotations

from typing import Any

from loradock.use.gguf.mixtures.softmax import mixtral

LAYERS_OF_LITE = (26, 27)
"""llama.cpp takes a model with so many layers for DeepSeek-V2-Lite, whose queries are not compressed."""


def groups(config: Any) -> dict[str, Any]:
    """Experts are chosen from some groups of them alone."""
    if (config.n_group or 1) == 1:
        return {}
    return {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}


def sigmoids(config: Any) -> dict[str, Any]:
    """Routers of DeepSeek-V3's kind: sigmoids, with a correction for the choice alone."""
    from gguf import ExpertGatingFuncType

    return groups(config) | {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": getattr(config, "first_k_dense_replace", 0),
        "expert_gating_func": ExpertGatingFuncType.SIGMOID,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
    }


def glm_seeing(config: Any) -> dict[str, Any]:
    """The numbers of GLM-4.6V."""
    return sigmoids(config) | {"rope_dimension_sections": [*config.rope_parameters["mrope_section"], 0]}


def dots(config: Any) -> dict[str, bool]:
    """llama.cpp has a head of keys for each of queries, no biases of attention, and no tied head."""
    heads = config.num_key_value_heads != config.num_attention_heads
    return {"num_key_value_heads": heads, "attention_bias": bool(config.attention_bias)} | not_tied(config)


def not_tied(config: Any) -> dict[str, bool]:
    """llama.cpp has no tied head here."""
    return {"tie_word_embeddings": bool(config.tie_word_embeddings)}


def minimax(config: Any) -> dict[str, Any]:
    """The numbers of MiniMax-M2."""
    from gguf import ExpertGatingFuncType

    return mixtral(config) | {
        "expert_feed_forward_length": config.intermediate_size,
        "expert_gating_func": ExpertGatingFuncType.SIGMOID,
    }


def compressed(config: Any) -> dict[str, Any]:
    """Of attention that is compressed: one head of keys, as wide as what is kept of a token."""
    rope = config.rope_parameters
    scale = rope.get("mscale_all_dim") if rope.get("rope_type") == "yarn" else None
    return {
        "head_count_kv": 1,
        "q_lora_rank": config.q_lora_rank or 0,
        "kv_lora_rank": config.kv_lora_rank,
        "key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "value_length": config.kv_lora_rank,
        "key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "value_length_mla": config.v_head_dim,
        "rope_dimension_count": config.qk_rope_head_dim,
    } | ({"rope_scaling_yarn_log_mul": 0.1 * scale} if scale else {})


def not_compressed(config: Any) -> dict[str, bool]:
    """What of attention that is compressed llama.cpp would compute otherwise."""
    return {
        "rope_interleave": not getattr(config, "rope_interleave", True),
        "num_hidden_layers": bool(config.q_lora_rank) and config.num_hidden_layers in LAYERS_OF_LITE,
        "attention_bias": bool(config.attention_bias),
    }


def deepseek3(config: Any) -> dict[str, Any]:
    """The numbers of DeepSeek-V3."""
    return sigmoids(config) | compressed(config)


def glm_lite(config: Any) -> dict[str, Any]:
    """The numbers of GLM-4.7-Flash."""
    return deepseek3(config) | {"leading_dense_block_count": list(config.mlp_layer_types).count("dense")}


def not_glm_lite(config: Any) -> dict[str, bool]:
    """What of GLM-4.7-Flash llama.cpp would compute otherwise."""
    kinds = list(config.mlp_layer_types)
    return not_compressed(config) | {"mlp_layer_types": kinds != sorted(kinds)}


def mistral4(config: Any) -> dict[str, Any]:
    """The numbers of Mistral Small 4."""
    from gguf import ExpertGatingFuncType

    rope = config.rope_parameters
    beta = rope.get("llama_4_scaling_beta")
    scaled = {
        "attn_temperature_scale": beta,
        "attn_temperature_length": rope.get("original_max_position_embeddings"),
    }
    return deepseek3(config) | {"expert_gating_func": ExpertGatingFuncType.SOFTMAX} | (scaled if beta else {})


def deepseek2(config: Any) -> dict[str, Any]:
    """The numbers of DeepSeek-V2."""
    from gguf import ExpertGatingFuncType

    softmax = {"expert_gating_func": ExpertGatingFuncType.SOFTMAX, "expert_weights_norm": False}
    return sigmoids(config) | compressed(config) | softmax


def not_deepseek2(config: Any) -> dict[str, bool]:
    """llama.cpp scores a group of experts by its best two, DeepSeek-V2 by the best one."""
    return not_compressed(config) | {"topk_method": config.topk_method != "greedy"}
