"""The attention of a model from its config.json alone; imports neither torch nor transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loradock.facts import AttentionShape


def attention_shape(file: Path) -> AttentionShape | None:
    """Heads, head size, sliding window and softcap by config.json; None where it is missing or does not say."""
    try:
        raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        raw = raw.get("text_config") or raw
        heads = int(raw.get("num_attention_heads") or raw["n_head"])
        hidden = int(raw.get("hidden_size") or raw["n_embd"])
        window = raw.get("sliding_window") if raw.get("use_sliding_window", True) else None
        return AttentionShape(
            heads=heads,
            key_value_heads=int(raw.get("num_key_value_heads") or heads),
            head_size=int(raw.get("head_dim") or hidden // heads),
            window=int(window) if window else None,
            softcap=float(raw["attn_logit_softcapping"]) if raw.get("attn_logit_softcapping") else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
