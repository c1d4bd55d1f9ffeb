"""Small mixtures of experts of transformers' own classes; random by a fixed seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hybrids import ATTENTION, DELTA_NET, RECURRENT
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from loradock.catalog.families import FAMILIES

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 2,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.4,
    "logits_scaling": 1.5,
}
DELTA = {
    **DELTA_NET,
    "layer_types": [RECURRENT, ATTENTION],
    "num_experts": 8,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
}
# Values are narrower than keys, as DeepSeek's are; a key's turned part is half as wide as the rest.
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 64, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "intermediate_size": 64, "sliding_window": 16},
    "glm4_moe": {
        "n_routed_experts": 8,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "use_qk_norm": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "solar_open": {"n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 64, "norm_topk_prob": True},
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
    },
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "routed_scaling_factor": 1.5},
    "deepseek_v3": {**LATENT, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True},
    "glm4_moe_lite": {**LATENT, "v_head_dim": 24, "routed_scaling_factor": 1.8, "mlp_layer_types": ["dense", "sparse"]},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 64,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
    },
    "minimax_m2": {"num_local_experts": 4, "intermediate_size": 64},
    "olmoe": {"num_experts": 8, "intermediate_size": 64, "norm_topk_prob": True},
    "granitemoe": {**GRANITE, "num_local_experts": 4},
    "granitemoeshared": {**GRANITE, "num_local_experts": 4, "shared_intermediate_size": 96},
    "granitemoehybrid": {
        **GRANITE,
        "num_local_experts": 4,
        "shared_intermediate_size": 96,
        "layer_types": ["full_attention"] * 2,
        "position_embedding_type": "nope",
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
    },
    "qwen3_next": DELTA,
    "qwen3_5_moe_text": {**DELTA, "vocab_size": 896},  # its tokenizer adds a token of its own
    "gemma4_text": {
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 96,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "llama4_text": {
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "intermediate_size": 64,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 24,
        "floor_scale": 16,
    },
}
SEEING: dict[str, dict[str, Any]] = {
    "qwen3_vl_moe": {
        **KINDS["qwen3_moe"],
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
    },
    "glm4v_moe": {
        **KINDS["glm4_moe"],
        "rope_parameters": {**KINDS["glm4_moe"]["rope_parameters"], "mrope_section": [2, 1, 1]},
    },
    "mistral3": {
        **LATENT,
        "model_type": "mistral4",
        "head_dim": 24,
        "n_group": 4,
        "topk_group": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 64.0,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.3,
        },
    },
}
"""The text of classes that see images, too: as a publisher saves them, with their tower."""
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "depth": 1, "out_hidden_size": 64}

FAST = tuple(kind for kind in KINDS if kind in {family.model_type for family in FAMILIES})
"""The kinds that the fast engine computes."""


def make(directory: Path, kind: str, *, seed: int = 0, **settings: Any) -> Path:
    """A random mixture of this kind (a model_type) with the demo's tokenizer, saved to `directory`."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    torch.manual_seed(seed)
    shape = {**COMMON, "vocab_size": len(tokenizer), **(KINDS | SEEING)[kind], **settings}
    if kind in SEEING:
        config = AutoConfig.for_model(kind, text_config=shape, vision_config=TOWER)
        model = AutoModelForImageTextToText.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    torch.manual_seed(seed)
    for parameter in model.parameters():  # some of these classes begin with zeros where others draw
        if parameter.dim() > 1 or not bool(parameter.any()):
            torch.nn.init.normal_(parameter.data, std=0.05)
    for name, each in (*model.named_parameters(), *model.named_buffers()):  # trained ones are not all alike
        is_over_heads = "_norm." in name and each.numel() > COMMON["head_dim"]
        if is_over_heads or name.endswith(("e_score_correction_bias", "router.scale", "expert_scale", "layer_scalar")):
            each.data.add_(torch.randn_like(each.data) * 0.1)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
