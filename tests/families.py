"""A tiny random model of every family that the fast engine serves, each with what sets its family apart switched on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hybrids import ATTENTION, DELTA_NET, MAMBA_2, RECURRENT
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
DELTA = {**DELTA_NET, "layer_types": [RECURRENT, ATTENTION], "head_dim": 32}
# From its eighth token on a query is multiplied.
NEAR = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 64.0,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.3,
}
GLM = {
    "head_dim": 32,
    "attention_bias": True,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
# Its last layer's heads are wider and fewer, its keys are its values, and a quarter of a head turns.
GEMMA_4 = {
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "final_logit_softcapping": 3.0,
}
# Windows are shorter than the rows; heads of Gemma and Qwen 3 are wider than hidden size over heads.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "smollm3": {"no_rope_layer_interval": 2, "pad_token_id": 0},
    "mistral": {"sliding_window": 16},
    "ministral3": {"head_dim": 32, "rope_parameters": NEAR},
    "qwen2": {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 16},
    "cwm": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "ministral": {"head_dim": 16, "sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
    "qwen3": {"head_dim": 32},
    "youtu": {
        "num_key_value_heads": 4,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "head_dim": 8,
        "v_head_dim": 16,
    },
    "phi3": {
        "pad_token_id": 0,
        "sliding_window": 20,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "olmo2": {},
    "olmo3": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "exaone4": {
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "glm": GLM,
    "glm4": GLM,
    "hunyuan_v1_dense": {
        "head_dim": 32,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0},
    },
    "ernie4_5": {"head_dim": 16, "use_bias": True},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.4,
        "logits_scaling": 1.5,
    },
    "qwen3_next": {**DELTA, "mlp_only_layers": [0, 1], "num_experts": 2, "num_experts_per_tok": 1},
    "qwen3_5_text": DELTA,
    "granitemoehybrid": {
        **MAMBA_2,
        "layer_types": [RECURRENT, ATTENTION],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 128,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.6,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "conv_bias": True},
    "gemma": {"head_dim": 32},
    "gemma2": {
        "head_dim": 32,
        "sliding_window": 16,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma4_text": GEMMA_4,
    "gemma4_unified_text": GEMMA_4,
    # Its last two layers attend to keys and values of the first two.
    "gemma4_small": {
        **GEMMA_4,
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "attention_k_eq_v": False,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 16,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}


def make_model(directory: Path, family: str, **settings: Any) -> Path:
    """A random model of 2 layers, with the demo's tokenizer; norms and biases are random too, as trained ones are."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    shape = {**COMMON, "vocab_size": len(tokenizer) + 10, **FAMILIES.get(family, {}), **settings}
    kind = shape.pop("model_type", family)
    if kind == "gemma4_text":
        shape["vocab_size_per_layer_input"] = shape["vocab_size"]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            if kind.startswith("gemma4") and name.endswith("q_norm.weight"):  # its attention has no scale of its own
                parameter.mul_(parameter.numel() ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.mul_(0.7)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
