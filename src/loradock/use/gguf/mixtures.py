"""Mixtures of experts that GGUF holds: llama.cpp's name of each, what its metadata says beside a dense decoder's, and
what llama.cpp has built in, so that a config.json that says otherwise is refused.

To add one: its line in `MIXTURES`, once llama.cpp's logits are those of transformers (`tests/export_gguf/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loradock.use.gguf import rearranged
from loradock.use.gguf.rearranged import Changes

Fields = Callable[[Any], Mapping[str, Any]]
Differences = Callable[[Any], Mapping[str, bool]]
ATTENTION = ("attention", "full_attention")
"""What transformers calls a layer of Granite's that is no state space: in files, and once it read them."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A mixture by transformers' `model_type`; `name` is llama.cpp's.

    `fields`: what gguf.GGUFWriter puts by `add_<key>`. `differences`: {key of config.json: whether llama.cpp computes
    another model}. `changes`: what is arranged otherwise there. `is_interleaved`: rows of gate and up lie in turn in
    the fused weight, not one below the other. `is_transposed`: matrices of experts lie [inputs, outputs].
    `turns_part`: rotary positions may turn a part of a head. `alias`: what stands in a class' names, and in its place
    in gguf's table of them.
    """

    name: str
    fields: Fields
    differences: Differences = lambda _: {}
    changes: Callable[[Any], Changes] = lambda _: {}
    is_interleaved: bool = False
    is_transposed: bool = False
    turns_part: bool = False
    alias: tuple[str, str] = ("", "")


def _qwen3(config: Any) -> dict[str, Any]:
    return {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def _not_every_layer(config: Any) -> dict[str, bool]:
    """llama.cpp has experts in every layer of Qwen's."""
    return {"decoder_sparse_step": config.decoder_sparse_step != 1, "mlp_only_layers": bool(config.mlp_only_layers)}


def _not_qwen3(config: Any) -> dict[str, bool]:
    return _not_every_layer(config) | {
        "norm_topk_prob": not config.norm_topk_prob,
        "attention_bias": bool(config.attention_bias),
    }


def _qwen2(config: Any) -> dict[str, Any]:
    return _qwen3(config) | {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}


def _not_qwen2(config: Any) -> dict[str, bool]:
    return _not_every_layer(config) | {
        "norm_topk_prob": bool(config.norm_topk_prob),
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def _mixtral(config: Any) -> dict[str, Any]:
    return {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}


def _gpt_oss(config: Any) -> dict[str, Any]:
    return _mixtral(config) | {"expert_feed_forward_length": config.intermediate_size}


def _not_gpt_oss(config: Any) -> dict[str, bool]:
    kinds = [("sliding_attention", "full_attention")[layer % 2] for layer in range(config.num_hidden_layers)]
    return {
        "layer_types": list(config.layer_types) != kinds,
        "swiglu_limit": getattr(config, "swiglu_limit", 7.0) != 7.0,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def _groups(config: Any) -> dict[str, Any]:
    """Experts are chosen from some groups of them alone."""
    if (config.n_group or 1) == 1:
        return {}
    return {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}


def _sigmoids(config: Any) -> dict[str, Any]:
    """Routers of DeepSeek-V3's kind: sigmoids, with a correction for the choice alone."""
    from gguf import ExpertGatingFuncType

    return _groups(config) | {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "leading_dense_block_count": getattr(config, "first_k_dense_replace", 0),
        "expert_gating_func": ExpertGatingFuncType.SIGMOID,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
    }


def _glm_seeing(config: Any) -> dict[str, Any]:
    return _sigmoids(config) | {"rope_dimension_sections": [*config.rope_parameters["mrope_section"], 0]}


def _olmoe(config: Any) -> dict[str, Any]:
    return {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}


def _not_olmoe(config: Any) -> dict[str, bool]:
    return {
        "num_key_value_heads": config.num_key_value_heads != config.num_attention_heads,
        "norm_topk_prob": bool(config.norm_topk_prob),
        "clip_qkv": config.clip_qkv is not None,
        "attention_bias": bool(config.attention_bias),
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def _ernie(config: Any) -> dict[str, Any]:
    return {
        "expert_count": config.moe_num_experts,
        "expert_used_count": config.moe_k,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.moe_num_shared_experts,
        "expert_shared_feed_forward_length": config.moe_num_shared_experts * config.moe_intermediate_size,
        "interleave_moe_layer_step": config.moe_layer_interval,
        "leading_dense_block_count": config.moe_layer_start_index,
    }


def _not_ernie(config: Any) -> dict[str, bool]:
    return {
        "moe_layer_interval": config.moe_layer_interval != 1,
        "moe_layer_end_index": -1 < config.moe_layer_end_index < config.num_hidden_layers - 1,
        "use_bias": bool(config.use_bias),
    }


def _dots(config: Any) -> dict[str, bool]:
    return {"num_key_value_heads": config.num_key_value_heads != config.num_attention_heads} | _not_tied(config)


def _not_tied(config: Any) -> dict[str, bool]:
    return {"tie_word_embeddings": bool(config.tie_word_embeddings)}


def _minimax(config: Any) -> dict[str, Any]:
    from gguf import ExpertGatingFuncType

    return _mixtral(config) | {
        "expert_feed_forward_length": config.intermediate_size,
        "expert_gating_func": ExpertGatingFuncType.SIGMOID,
    }


def _compressed(config: Any) -> dict[str, Any]:
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


def _not_compressed(config: Any) -> dict[str, bool]:
    rope = config.rope_parameters
    return {
        "rope_interleave": not getattr(config, "rope_interleave", True),
        "rope_scaling": rope.get("mscale", 1.0) != rope.get("mscale_all_dim", rope.get("mscale", 1.0)),
        "attention_bias": bool(config.attention_bias),
    }


def _deepseek3(config: Any) -> dict[str, Any]:
    return _sigmoids(config) | _compressed(config)


def _glm_lite(config: Any) -> dict[str, Any]:
    return _deepseek3(config) | {"leading_dense_block_count": list(config.mlp_layer_types).count("dense")}


def _not_glm_lite(config: Any) -> dict[str, bool]:
    kinds = list(config.mlp_layer_types)
    return _not_compressed(config) | {"mlp_layer_types": kinds != sorted(kinds)}


def _mistral4(config: Any) -> dict[str, Any]:
    from gguf import ExpertGatingFuncType

    rope = config.rope_parameters
    beta = rope.get("llama_4_scaling_beta")
    scaled = {
        "attn_temperature_scale": beta,
        "attn_temperature_length": rope.get("original_max_position_embeddings"),
    }
    return _deepseek3(config) | {"expert_gating_func": ExpertGatingFuncType.SOFTMAX} | (scaled if beta else {})


def _deepseek2(config: Any) -> dict[str, Any]:
    from gguf import ExpertGatingFuncType

    softmax = {"expert_gating_func": ExpertGatingFuncType.SOFTMAX, "expert_weights_norm": False}
    return _sigmoids(config) | _compressed(config) | softmax


def _not_deepseek2(config: Any) -> dict[str, bool]:
    """llama.cpp scores a group of experts by its best two, DeepSeek-V2 by the best one."""
    return _not_compressed(config) | {"topk_method": config.topk_method != "greedy"}


def _delta_net(config: Any) -> dict[str, Any]:
    return _qwen2(config) | {
        "ssm_conv_kernel": config.linear_conv_kernel_dim,
        "ssm_state_size": config.linear_key_head_dim,
        "ssm_group_count": config.linear_num_key_heads,
        "ssm_time_step_rank": config.linear_num_value_heads,
        "ssm_inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "full_attention_interval": _interval(config),
    }


def _interval(config: Any) -> int:
    """Of how many layers the last one sees all tokens."""
    return list(config.layer_types).index("full_attention") + 1 if "full_attention" in config.layer_types else 0


def _not_delta_net(config: Any) -> dict[str, bool]:
    interval = _interval(config)
    layers = range(1, config.num_hidden_layers + 1)
    kinds = ["linear_attention" if not interval or layer % interval else "full_attention" for layer in layers]
    return {
        "layer_types": not interval or list(config.layer_types) != kinds,
        "linear_value_head_dim": config.linear_value_head_dim != config.linear_key_head_dim,
        "attention_bias": bool(config.attention_bias),
    }


def _not_qwen3_next(config: Any) -> dict[str, bool]:
    return _not_delta_net(config) | _not_every_layer(config) | {"norm_topk_prob": not config.norm_topk_prob}


def _qwen35(config: Any) -> dict[str, Any]:
    sections = config.rope_parameters.get("mrope_section", (11, 11, 10))
    return _delta_net(config) | {"rope_dimension_sections": [*sections, 0]}


def _granite(config: Any) -> dict[str, Any]:
    return _mixtral(config) | {
        "attention_scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def _granite_hybrid(config: Any) -> dict[str, Any]:
    heads = [config.num_key_value_heads if kind in ATTENTION else 0 for kind in config.layer_types]
    return _granite(config) | {
        "head_count_kv": heads,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
        "rope_scaling_finetuned": config.position_embedding_type == "rope",
        "ssm_conv_kernel": config.mamba_d_conv,
        "ssm_state_size": config.mamba_d_state,
        "ssm_group_count": config.mamba_n_groups,
        "ssm_inner_size": config.mamba_expand * config.hidden_size,
        "ssm_time_step_rank": config.mamba_n_heads,
    }


def _not_granite_hybrid(config: Any) -> dict[str, bool]:
    return {
        "num_local_experts": not config.num_local_experts,
        "layer_types": all(kind in ATTENTION for kind in config.layer_types),
        "mamba_proj_bias": bool(config.mamba_proj_bias),
        "attention_bias": bool(config.attention_bias),
    }


def _nemotron(config: Any) -> dict[str, Any]:
    kinds = config.layers_block_type
    return _groups(config) | {
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


def _not_nemotron(config: Any) -> dict[str, bool]:
    return {
        "layers_block_type": "moe" not in config.layers_block_type or "mlp" in config.layers_block_type,
        "moe_latent_size": config.moe_latent_size is not None,
        "mlp_bias": bool(config.mlp_bias),
        "attention_bias": bool(config.attention_bias),
        "use_bias": bool(config.use_bias),
        "n_shared_experts": config.n_shared_experts != 1,
    }


def _llama4(config: Any) -> dict[str, Any]:
    return _mixtral(config) | {
        "feed_forward_length": config.intermediate_size_mlp,
        "expert_feed_forward_length": config.intermediate_size,
        "interleave_moe_layer_step": config.interleave_moe_layer_step,
    }


def _not_llama4(config: Any) -> dict[str, bool]:
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


MIXTURES = {
    "qwen3_moe": Mixture(name="qwen3moe", fields=_qwen3, differences=_not_qwen3),
    "qwen2_moe": Mixture(name="qwen2moe", fields=_qwen2, differences=_not_qwen2),
    "mixtral": Mixture(name="llama", fields=_mixtral),
    "gpt_oss": Mixture(
        name="gpt-oss", fields=_gpt_oss, differences=_not_gpt_oss, is_interleaved=True, is_transposed=True
    ),
    "deepseek_v3": Mixture(
        name="deepseek2", fields=_deepseek3, differences=_not_compressed, changes=rearranged.compressed
    ),
    "deepseek_v2": Mixture(
        name="deepseek2", fields=_deepseek2, differences=_not_deepseek2, changes=rearranged.compressed
    ),
    "glm4_moe_lite": Mixture(
        name="deepseek2", fields=_glm_lite, differences=_not_glm_lite, changes=rearranged.compressed
    ),
    "mistral4": Mixture(
        name="mistral4",
        fields=_mistral4,
        differences=_not_compressed,
        changes=rearranged.compressed,
        turns_part=True,
    ),
    "qwen3_next": Mixture(
        name="qwen3next",
        fields=_delta_net,
        differences=_not_qwen3_next,
        changes=rearranged.delta_net,
        turns_part=True,
    ),
    "qwen3_5_moe_text": Mixture(
        name="qwen35moe",
        fields=_qwen35,
        differences=_not_delta_net,
        changes=rearranged.tiled_delta_net,
        turns_part=True,
    ),
    "granitemoe": Mixture(name="granitemoe", fields=_granite, changes=rearranged.granite),
    "granitemoehybrid": Mixture(
        name="granitehybrid", fields=_granite_hybrid, differences=_not_granite_hybrid, changes=rearranged.granite
    ),
    "nemotron_h": Mixture(
        name="nemotron_h_moe",
        fields=_nemotron,
        differences=_not_nemotron,
        changes=rearranged.nemotron,
        alias=("model.layers.", "backbone.layers."),
    ),
    "llama4_text": Mixture(name="llama4", fields=_llama4, differences=_not_llama4, is_transposed=True),
    "dots1": Mixture(name="dots1", fields=_sigmoids, differences=_dots),
    "minimax_m2": Mixture(name="minimax-m2", fields=_minimax, differences=_not_tied, turns_part=True),
    "glm4v_moe_text": Mixture(name="glm4moe", fields=_glm_seeing, turns_part=True),
    "glm4_moe": Mixture(name="glm4moe", fields=_sigmoids, turns_part=True),
    "olmoe": Mixture(name="olmoe", fields=_olmoe, differences=_not_olmoe),
    "ernie4_5_moe": Mixture(name="ernie4_5-moe", fields=_ernie, differences=_not_ernie),
}
"""By transformers' model_type of the language model."""

WITHOUT = {
    "deepseek_v32": "the package gguf has no names for its indexer of attention",
    "deepseek_v4": "the package gguf has no names for its attention",
    "gemma4_text": "its experts and layers were not compared with llama.cpp's",
}
"""Why a mixture has no line above, by its model_type."""
