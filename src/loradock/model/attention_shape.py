"""A model's attention, and whether it has experts, from config.json alone; imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loradock.errors import LoradockError
from loradock.model import hub_cache
from loradock.model.files import json_object

HEADS = ("num_attention_heads", "n_head", "n_heads")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
# What transformers fills in where a config.json leaves it out, by the type of model.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "attn_logit_softcapping": 50.0},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False},
    "qwen3_moe": {"use_sliding_window": False},
}
# Before its new decoder, Falcon counts heads of keys in another way: one for all, or one for each.
ONE_KEY_FOR_ALL = {"falcon", "RefinedWebModel", "RefinedWeb", "gpt_bigcode"}


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The attention of a model, by its config. The defaults are those of a common 8B model.

    `window` is the sliding window in tokens; `softcap` bounds the scores before the softmax (Gemma 2).
    """

    heads: int = 32
    key_value_heads: int = 8
    head_size: int = 128
    window: int | None = None
    softcap: float | None = None


def of_model(name: str, revision: str | None, *, environ: Mapping[str, str]) -> AttentionShape | None:
    """The attention of the model of that name: a directory, or a hub id that lies in the hub's cache here."""
    directory = hub_cache.directory_of(name, revision, environ=environ)
    return attention_shape(directory / "config.json") if directory else None


def attention_shape(file: Path) -> AttentionShape | None:
    """Heads, head size, sliding window and softcap by config.json; None where it is missing or does not say."""
    try:
        return of_config(json_object(file))
    except (LoradockError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def has_experts(name: str, revision: str | None, *, environ: Mapping[str, str]) -> bool:
    """Whether the model of that name is a mixture of experts; False where its config.json is not here."""
    directory = hub_cache.directory_of(name, revision, environ=environ)
    try:
        config = json_object(directory / "config.json") if directory else {}
        language = {**config, **(config.get("text_config") or {})}
        return any(isinstance(language.get(key), int) and language[key] > 1 for key in EXPERTS)
    except (LoradockError, TypeError):
        return False


def of_config(config: dict[str, Any]) -> AttentionShape:
    """The same of a parsed config.json. Raises KeyError, TypeError or ValueError where it does not say."""
    raw = config.get("text_config") or config
    raw = {**LEFT_OUT.get(raw.get("model_type", ""), {}), **raw}
    heads = int(_first(raw, HEADS))
    window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
    return AttentionShape(
        heads=heads,
        key_value_heads=_key_value_heads(raw, heads),
        head_size=_head_size(raw, heads),
        window=int(window) if window else None,
        softcap=float(raw["attn_logit_softcapping"]) if raw.get("attn_logit_softcapping") else None,
    )


def _first(raw: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first name that has one; KeyError where none has."""
    for name in names:
        if raw.get(name):
            return raw[name]
    raise KeyError(names[0])


def _key_value_heads(raw: dict[str, Any], heads: int) -> int:
    if raw.get("model_type") in ONE_KEY_FOR_ALL and not raw.get("new_decoder_architecture"):
        return 1 if raw.get("multi_query", True) else heads
    inner = raw.get("attn_config") or {}
    return int(_first({**raw, "n_head_kv": raw.get("n_head_kv") or inner.get("kv_n_heads") or heads}, KEY_VALUE_HEADS))


def _head_size(raw: dict[str, Any], heads: int) -> int:
    """Its own key, the two parts of latent attention, or the hidden size over the heads."""
    if raw.get("qk_rope_head_dim"):
        return int(raw["qk_nope_head_dim"]) + int(raw["qk_rope_head_dim"])
    return int(raw.get("head_dim") or int(_first(raw, HIDDEN)) // heads)
