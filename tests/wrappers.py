"""Small models of the classes that publishers save this year, their towers included; random by a fixed seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import BASE
from transformers import AutoConfig, AutoTokenizer

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "patch_size": 14}
SIGLIP = {**VISION, "num_hidden_layers": 2, "image_size": 28}
QWEN_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "depth": 2, "out_hidden_size": 64}
LINEAR_ATTENTION = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
THREE_TO_ONE = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": {**TEXT, **LINEAR_ATTENTION, "num_hidden_layers": 4, "layer_types": THREE_TO_ONE},
            "vision_config": QWEN_VISION,
        },
    ),
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        {"text_config": TEXT, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
    ),
    "gemma4": (
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "global_head_dim": 16,
                "num_kv_shared_layers": 0,
                "hidden_size_per_layer_input": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "vision_config": {**VISION, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16},
        },
    ),
    "llama4": (
        "Llama4ForConditionalGeneration",
        {
            "text_config": {**TEXT, "intermediate_size": 64, "intermediate_size_mlp": 128, "num_local_experts": 4},
            "vision_config": {
                **SIGLIP,
                "vision_output_dim": 64,
                "projector_input_dim": 64,
                "projector_output_dim": 64,
            },
        },
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {"text_config": TEXT, "vision_config": {**SIGLIP, "head_dim": 16}},
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": {**TEXT, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
            "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
        },
    ),
}
"""The published class, and the parts of its config.json."""

ONE_KIND = ["qwen3_5", *(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS if kind != "qwen3_5")]
"""For what differs little from kind to kind, and starts a Python or proves a whole merge each time."""


def make_wrapper(directory: Path, kind: str, *, seed: int = 0, text: Mapping[str, Any] | None = None) -> Path:
    """A model of the published class in `directory`, as that class saves it, with the demo's tokenizer.

    `text`: other values of its language model's config.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(BASE)
    name, parts = KINDS[kind]
    own = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    vocabulary = {"vocab_size": len(tokenizer) + 8, "vocab_size_per_layer_input": len(tokenizer) + 8}
    language = {**parts["text_config"], **own, **vocabulary, **(text or {})}
    images = {
        key: len(tokenizer) + at for at, key in enumerate(("image_token_id", "video_token_id", "image_token_index"))
    }
    config = AutoConfig.for_model(kind, **{**parts, "text_config": language}, **images)
    torch.manual_seed(seed)
    model = getattr(transformers, name)._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
