"""Mixtures of experts that GGUF holds: llama.cpp's name of each, what its metadata says beside a dense decoder's, and
what llama.cpp has built in, so that a config.json that says otherwise is refused.

To add one: its line in `MIXTURES`, once llama.cpp's logits are those of transformers (`tests/export_gguf/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Fields = Callable[[Any], Mapping[str, Any]]
Differences = Callable[[Any], Mapping[str, bool]]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A mixture by transformers' `model_type`; `name` is llama.cpp's.

    `fields`: what gguf.GGUFWriter puts by `add_<key>`. `differences`: {key of config.json: whether llama.cpp computes
    another model}. `is_interleaved`: rows of gate and up lie in turn in the fused weight, not one below the other.
    `is_transposed`: matrices of experts lie [inputs, outputs]. `turns_part`: rotary positions may turn a part of a head.
    """

    name: str
    fields: Fields
    differences: Differences = lambda _: {}
    is_interleaved: bool = False
    is_transposed: bool = False
    turns_part: bool = False


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
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_gating_func": ExpertGatingFuncType.SIGMOID,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
    }


def _olmoe(config: Any) -> dict[str, Any]:
    return {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}


def _not_olmoe(config: Any) -> dict[str, bool]:
    return {
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
        "moe_layer_end_index": config.moe_layer_end_index not in (-1, config.num_hidden_layers - 1),
        "use_bias": bool(config.use_bias),
    }


MIXTURES = {
    "qwen3_moe": Mixture(name="qwen3moe", fields=_qwen3, differences=_not_qwen3),
    "qwen2_moe": Mixture(name="qwen2moe", fields=_qwen2, differences=_not_qwen2),
    "mixtral": Mixture(name="llama", fields=_mixtral),
    "gpt_oss": Mixture(
        name="gpt-oss", fields=_gpt_oss, differences=_not_gpt_oss, is_interleaved=True, is_transposed=True
    ),
    "glm4_moe": Mixture(name="glm4moe", fields=_sigmoids, turns_part=True),
    "olmoe": Mixture(name="olmoe", fields=_olmoe, differences=_not_olmoe),
    "ernie4_5_moe": Mixture(name="ernie4_5-moe", fields=_ernie, differences=_not_ernie),
}
"""By transformers' model_type of the language model."""
