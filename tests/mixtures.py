"""Small mixtures of experts of transformers' own classes; random by a fixed seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny import BASE
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

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
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 64, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "intermediate_size": 64},
    "glm4_moe": {"n_routed_experts": 4, "moe_intermediate_size": 64, "first_k_dense_replace": 1},
    "granitemoe": {"num_local_experts": 4},
}

FAST = tuple(kind for kind in KINDS if kind in {family.model_type for family in FAMILIES})
"""The kinds that the fast engine computes."""


def make(directory: Path, kind: str, *, seed: int = 0, **settings: Any) -> Path:
    """A random mixture of this kind (a model_type) with the demo's tokenizer, saved to `directory`."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    torch.manual_seed(seed)
    shape = {**COMMON, "vocab_size": len(tokenizer), **KINDS[kind], **settings}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    torch.manual_seed(seed)
    for parameter in model.parameters():  # some of these classes begin with zeros where others draw
        if parameter.dim() > 1 or not bool(parameter.any()):
            torch.nn.init.normal_(parameter.data, std=0.05)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
