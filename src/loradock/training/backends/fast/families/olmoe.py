"""OLMoE: one norm over all query heads, one over all key heads."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_layer
from loradock.training.backends.fast.families.parts import ModelParts, Unfit


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    if config.clip_qkv is not None:
        raise Unfit(f"its queries, keys and values are cut off (clip_qkv {config.clip_qkv})")
    layers = [
        split_layer(layer, config, activation=config.hidden_act, has_head_norms=True)
        for layer in decoder_of(model).layers
    ]
    return common_model(model, positions=positions, layers=layers)
