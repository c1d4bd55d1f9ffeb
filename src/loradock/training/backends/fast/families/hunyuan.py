"""Hunyuan's dense models: queries and keys are normed after they were turned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import (
    common_model,
    decoder_of,
    norm_of,
    split_attention,
    split_layer,
)
from loradock.training.backends.fast.families.parts import LayerParts, ModelParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    return common_model(model, positions=positions, layers=[_layer(each, config) for each in decoder_of(model).layers])


def _layer(layer: Any, config: Any) -> LayerParts:
    attention = layer.self_attn
    mixer = replace(
        split_attention(attention, config, window=None),
        query_norm=norm_of(attention.query_layernorm),
        key_norm=norm_of(attention.key_layernorm),
        turns_first=True,
    )
    return split_layer(layer, config, activation=config.hidden_act, mixer=mixer)
