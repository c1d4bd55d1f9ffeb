"""The attention's shape by public config.json files: each family names heads, windows and caps in its own way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loradock.config.schema import RunConfig
from loradock.config.sections.model import ModelConfig
from loradock.env_check.intent import intent
from loradock.machine import Host
from loradock.model import attention_shape
from loradock.model.attention_shape import AttentionShape

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def shape(heads: int, key_value_heads: int, head_size: int, **more: Any) -> AttentionShape:
    return AttentionShape(heads=heads, key_value_heads=key_value_heads, head_size=head_size, **more)


# The keys that matter of the public config.json of each model, as they stand there.
PUBLIC: dict[str, tuple[dict[str, Any], AttentionShape]] = {
    "Llama-3-8B": (
        {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8},
        shape(32, 8, 128),
    ),
    "Llama-3.2-1B": (
        {
            "model_type": "llama",
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
        },
        shape(32, 8, 64),
    ),
    "Mistral-7B-v0.1": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        shape(32, 8, 128, window=4096),
    ),
    "Mistral-7B-v0.3": (
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": None,
        },
        shape(32, 8, 128),
    ),
    "Phi-3-mini-4k": (
        {
            "model_type": "phi3",
            "hidden_size": 3072,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "sliding_window": 2047,
        },
        shape(32, 32, 96, window=2047),
    ),
    "phi-2": (
        {"model_type": "phi", "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": None},
        shape(32, 32, 80),
    ),
    "Gemma-2-9B": (
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
        },
        shape(16, 8, 256, window=4096, softcap=50.0),
    ),
    "Gemma-3-4B": (
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        },
        shape(8, 4, 256, window=1024),
    ),
    "Qwen2.5-7B": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "sliding_window": 131072,
            "use_sliding_window": False,
        },
        shape(28, 4, 128),
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3",
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": None,
            "use_sliding_window": False,
        },
        shape(16, 8, 128),
    ),
    "Falcon-7B": (
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_attention_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
        },
        shape(71, 1, 64),
    ),
    "Falcon-40B": (
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "multi_query": True,
            "new_decoder_architecture": True,
        },
        shape(128, 8, 64),
    ),
    "Falcon-RW-1B": (
        {"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "multi_query": False},
        shape(32, 32, 64),
    ),
    "Pythia-6.9B (GPT-NeoX)": (
        {"model_type": "gpt_neox", "hidden_size": 4096, "num_attention_heads": 32},
        shape(32, 32, 128),
    ),
    "GPT-2": ({"model_type": "gpt2", "n_embd": 768, "n_head": 12}, shape(12, 12, 64)),
    "StarCoder": (
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "multi_query": True},
        shape(48, 1, 128),
    ),
    "MPT-7B": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "attn_config": {"attn_type": "multihead_attention"}},
        shape(32, 32, 128),
    ),
    "DeepSeek-V2-Lite": (
        {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
        },
        shape(16, 16, 192),
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_configuration_gives_the_attention_that_the_model_has(name: str) -> None:
    config, expected = PUBLIC[name]
    assert attention_shape.of_config(config) == expected


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"num_attention_heads": 0}', '{"num_attention_heads": "x"}'])
def test_what_does_not_say_gives_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert attention_shape.attention_shape(tmp_path / "config.json") is None
    assert attention_shape.attention_shape(tmp_path / "none.json") is None


def test_a_hub_model_is_read_from_the_hubs_cache(tmp_path: Path) -> None:
    class Elsewhere(Host):
        @property
        def environ(self) -> dict[str, str]:
            return {"HF_HUB_CACHE": str(tmp_path), "HOME": str(tmp_path)}

    folder = tmp_path / "models--someone--falcon" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(PUBLIC["Falcon-7B"][0]), encoding="utf-8")
    config = RunConfig(model=ModelConfig(name="someone/falcon", revision=COMMIT))
    assert intent(Elsewhere(), config).attention == shape(71, 1, 64)
    other = RunConfig(model=ModelConfig(name="someone/else", revision=COMMIT))
    assert intent(Elsewhere(), other).attention == AttentionShape()
