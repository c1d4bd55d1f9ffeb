"""Mixtures with plain attention and a softmax over experts, gpt-oss, Llama 4: their numbers, and what is built in."""

from __future__ import annotations

from typing import Any


def qwen3(config: Any) -> dict[str, Any]:
    """The numbers of Qwen3-MoE."""
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def not_every_layer(config: Any) -> dict[str, bool]:
    """llama.cpp has experts in every layer of Qwen's."""
    return {"decoder_sparse_step": config.decoder_sparse_step != 1, "mlp_only_layers": bool(config.mlp_only_layers)}


def not_qwen3(config: Any) -> dict[str, bool]:
    """What of Qwen3-MoE llama.cpp would compute otherwise."""
    return not_every_layer(config) | {
        "norm_topk_prob": not config.norm_topk_prob,
        "attention_bias": bool(config.attention_bias),
    }


def qwen2(config: Any) -> dict[str, Any]:
    """The numbers of Qwen2-MoE."""
    return qwen3(config) | {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}


def not_qwen2(config: Any) -> dict[str, bool]:
    """What of Qwen2-MoE llama.cpp would compute otherwise."""
    return not_every_layer(config) | {
        "norm_topk_prob": bool(config.norm_topk_prob),
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def mixtral(config: Any) -> dict[str, Any]:
    """The numbers of Mixtral."""
    return {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}


def gpt_oss(config: Any) -> dict[str, Any]:
    """The numbers of gpt-oss."""
    return mixtral(config) | {"expert_feed_forward_length": config.intermediate_size}


def not_gpt_oss(config: Any) -> dict[str, bool]:
    """What of gpt-oss llama.cpp would compute otherwise."""
    kinds = [("sliding_attention", "full_attention")[layer % 2] for layer in range(config.num_hidden_layers)]
    return {
        "layer_types": list(config.layer_types) != kinds,
        "swiglu_limit": getattr(config, "swiglu_limit", 7.0) != 7.0,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def olmoe(config: Any) -> dict[str, Any]:
    """The numbers of OLMoE."""
    return {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}


def not_olmoe(config: Any) -> dict[str, bool]:
    """What of OLMoE llama.cpp would compute otherwise."""
    return {
        "num_key_value_heads": config.num_key_value_heads != config.num_attention_heads,
        "norm_topk_prob": bool(config.norm_topk_prob),
        "clip_qkv": config.clip_qkv is not None,
        "attention_bias": bool(config.attention_bias),
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def ernie(config: Any) -> dict[str, Any]:
    """The numbers of ERNIE-4.5."""
    return {
        "expert_count": config.moe_num_experts,
        "expert_used_count": config.moe_k,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.moe_num_shared_experts,
        "expert_shared_feed_forward_length": config.moe_num_shared_experts * config.moe_intermediate_size,
        "interleave_moe_layer_step": config.moe_layer_interval,
        "leading_dense_block_count": config.moe_layer_start_index,
    }


def not_ernie(config: Any) -> dict[str, bool]:
    """What of ERNIE-4.5 llama.cpp would compute otherwise."""
    return {
        "moe_layer_interval": config.moe_layer_interval != 1,
        "moe_layer_end_index": -1 < config.moe_layer_end_index < config.num_hidden_layers - 1,
        "use_bias": bool(config.use_bias),
    }


def granite(config: Any) -> dict[str, Any]:
    """The numbers of Granite's mixtures."""
    return mixtral(config) | {
        "attention_scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def llama4(config: Any) -> dict[str, Any]:
    """The numbers of Llama 4."""
    return mixtral(config) | {
        "feed_forward_length": config.intermediate_size_mlp,
        "expert_feed_forward_length": config.intermediate_size,
        "interleave_moe_layer_step": config.interleave_moe_layer_step,
    }


def not_llama4(config: Any) -> dict[str, bool]:
    """What of Llama 4 llama.cpp would compute otherwise."""
    layers = range(1, config.num_hidden_layers + 1)
    step = config.interleave_moe_layer_step
    return {
        "no_rope_layers": list(config.no_rope_layers) != [int(layer % 4 != 0) for layer in layers],
        "moe_layers": list(config.moe_layers) != [layer - 1 for layer in layers if layer % step == 0],
        "attention_chunk_size": config.attention_chunk_size != 8192,
        "floor_scale": config.floor_scale != 8192,
        "attn_scale": config.attn_scale != 0.1,
        "attn_temperature_tuning": not config.attn_temperature_tuning,
        "use_qk_norm": bool(config.use_qk_norm) != (config.num_local_experts != 128),
        "attention_bias": bool(config.attention_bias),
    }
