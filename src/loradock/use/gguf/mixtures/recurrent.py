"""Mixtures with recurrent layers: numbers of the file, and what llama.cpp has built in."""

from __future__ import annotations

from typing import Any

from loradock.errors import ModelError
from loradock.use.gguf.mixtures.sigmoid import groups
from loradock.use.gguf.mixtures.softmax import granite, not_every_layer, qwen2

ATTENTION = ("attention", "full_attention")
"""What transformers calls a layer of Granite's that is no state space: in files, and once it read them."""


def delta_net(config: Any) -> dict[str, Any]:
    """The numbers of gated delta nets."""
    return qwen2(config) | {
        "ssm_conv_kernel": config.linear_conv_kernel_dim,
        "ssm_state_size": config.linear_key_head_dim,
        "ssm_group_count": config.linear_num_key_heads,
        "ssm_time_step_rank": config.linear_num_value_heads,
        "ssm_inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "full_attention_interval": interval(config),
    }


def interval(config: Any) -> int:
    """Of how many layers the last one sees all tokens."""
    return list(config.layer_types).index("full_attention") + 1 if "full_attention" in config.layer_types else 0


def not_delta_net(config: Any) -> dict[str, bool]:
    """What of gated delta nets llama.cpp would compute otherwise."""
    every = interval(config)
    layers = range(1, config.num_hidden_layers + 1)
    kinds = ["linear_attention" if not every or layer % every else "full_attention" for layer in layers]
    return {
        "layer_types": not every or list(config.layer_types) != kinds,
        "linear_value_head_dim": config.linear_value_head_dim != config.linear_key_head_dim,
        "attention_bias": bool(config.attention_bias),
    }


def not_qwen3_next(config: Any) -> dict[str, bool]:
    """What of Qwen3-Next llama.cpp would compute otherwise."""
    return not_delta_net(config) | not_every_layer(config) | {"norm_topk_prob": not config.norm_topk_prob}


def qwen35(config: Any) -> dict[str, Any]:
    """The numbers of Qwen3.5."""
    sections = config.rope_parameters.get("mrope_section", (11, 11, 10))
    return delta_net(config) | {"rope_dimension_sections": [*sections, 0]}


def granite_hybrid(config: Any) -> dict[str, Any]:
    """The numbers of Granite 4's state spaces."""
    heads = [config.num_key_value_heads if kind in ATTENTION else 0 for kind in config.layer_types]
    return granite(config) | {
        "head_count_kv": heads,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "rope_scaling_finetuned": config.position_embedding_type == "rope",
        "ssm_conv_kernel": config.mamba_d_conv,
        "ssm_state_size": config.mamba_d_state,
        "ssm_group_count": config.mamba_n_groups,
        "ssm_inner_size": config.mamba_expand * config.hidden_size,
        "ssm_time_step_rank": config.mamba_n_heads,
    }


def not_granite_hybrid(config: Any) -> dict[str, bool]:
    """What of Granite 4's state spaces llama.cpp would compute otherwise. ModelError for one without them."""
    if not config.num_local_experts or all(kind in ATTENTION for kind in config.layer_types):
        what = "a granitemoehybrid is exported to GGUF here with state spaces and experts alone"
        raise ModelError(what, hint="llama.cpp's own convert_hf_to_gguf.py DIR knows more")
    return {
        "mamba_proj_bias": bool(config.mamba_proj_bias),
        "shared_intermediate_size": not config.shared_intermediate_size,
        "attention_bias": bool(config.attention_bias),
    }


def nemotron(config: Any) -> dict[str, Any]:
    """The numbers of Nemotron 3."""
    kinds = config.layers_block_type
    return groups(config) | {
        "feed_forward_length": [config.moe_intermediate_size if kind == "moe" else 0 for kind in kinds],
        "head_count_kv": [config.num_key_value_heads if kind in ATTENTION else 0 for kind in kinds],
        "layer_norm_eps": config.layer_norm_epsilon,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
        "ssm_conv_kernel": config.conv_kernel,
        "ssm_state_size": config.ssm_state_size,
        "ssm_group_count": config.n_groups,
        "ssm_inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm_time_step_rank": config.mamba_num_heads,
    }


def not_nemotron(config: Any) -> dict[str, bool]:
    """What of Nemotron 3 llama.cpp would compute otherwise."""
    return {
        "layers_block_type": "moe" not in config.layers_block_type or "mlp" in config.layers_block_type,
        "moe_latent_size": config.moe_latent_size is not None,
        "mlp_bias": bool(config.mlp_bias),
        "attention_bias": bool(config.attention_bias),
        "use_bias": bool(config.use_bias),
        "n_shared_experts": config.n_shared_experts != 1,
    }
