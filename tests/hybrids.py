"""Small models of the classes that mix tokens by more than attention, one of each kind; random by a fixed seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
DELTA_NET = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16, "mamba_n_groups": 1}
NO_EXPERTS = {"mlp_only_layers": [0, 1, 2, 3], "num_experts": 2, "num_experts_per_tok": 1}
RECURRENT, ATTENTION = "linear_attention", "full_attention"
THREE_TO_ONE = [RECURRENT, RECURRENT, RECURRENT, ATTENTION]
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**DELTA_NET, "layer_types": THREE_TO_ONE},
    "qwen3_next": {**DELTA_NET, **NO_EXPERTS, "layer_types": THREE_TO_ONE},
    "olmo_hybrid": {
        **DELTA_NET,
        "linear_num_key_heads": 4,
        "layer_types": THREE_TO_ONE,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "kimi_linear": {
        "layer_types": THREE_TO_ONE,
        "mlp_layer_types": ["dense"] * 4,
        "num_key_value_heads": 4,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
    "lfm2": {"layer_types": ["conv", "conv", ATTENTION], "block_auto_adjust_ff_dim": False},
    "falcon_h1": {**MAMBA_2, "mamba_d_ssm": 128, "num_hidden_layers": 2},
    "granitemoehybrid": {
        **MAMBA_2,
        "layer_types": [RECURRENT, RECURRENT, ATTENTION],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 128,
        "position_embedding_type": "nope",
    },
    "bamba": {**MAMBA_2, "num_hidden_layers": 3, "attn_layer_indices": [2]},
    "nemotron_h": {
        "layers_block_type": [RECURRENT, "mlp", ATTENTION, RECURRENT],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
        "chunk_size": 16,
        "head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": [RECURRENT, "hybrid", RECURRENT],
        "mamba_d_state": 16,
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "mamba_ngroups": 1,
        "chunk_size": 16,
        "num_key_value_heads": 4,
        "num_mem_blocks": 1,
        "adapter_rank": 8,
    },
    "jamba": {
        "num_hidden_layers": 3,
        "attn_layer_period": 3,
        "attn_layer_offset": 2,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
    },
}
"""What each has in its config.json besides `COMMON`."""
OFTEN = ("qwen3_5_text", "lfm2", "falcon_h1")
"""One of each mechanism: delta rule, convolution alone, state space beside attention."""


def config_of(kind: str, **settings: Any) -> Any:
    """The config of a kind, with the vocabulary of the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    shape = {**COMMON, **KINDS[kind], **tokens, "vocab_size": len(tokenizer) + 8, **settings}
    layers = shape.get("layer_types") or shape.get("layers_block_type")
    return AutoConfig.for_model(kind, **({"num_hidden_layers": len(layers)} if layers else {}) | shape)


def built(kind: str, **settings: Any) -> Any:
    """A model of a kind in float32, in evaluation mode."""
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config_of(kind, **settings), dtype=torch.float32).eval()


def make_hybrid(directory: Path, kind: str, **settings: Any) -> Path:
    """A model of a kind in `directory`, with the demo's tokenizer."""
    built(kind, **settings).save_pretrained(directory)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(directory)
    return directory
