"""Qwen3-Next and Qwen3.5: the gated delta rule in most layers, gated attention in the others; norms of 1 + weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import (
    common_model,
    decoder_of,
    recurrent_of,
    split_attention,
    split_layer,
)
from loradock.training.backends.fast.families.parts import AttentionParts, LayerParts, ModelParts, RecurrentParts

INPUTS = ("in_proj_qkvz", "in_proj_ba"), ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
"""Of Qwen3-Next, and of Qwen3.5."""


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    layers = [_layer(layer, decoder.config) for layer in decoder.layers]
    return common_model(model, positions=positions, layers=layers, offset=True)


def _layer(layer: Any, config: Any) -> LayerParts:
    mixer = _recurrent(layer.linear_attn) if hasattr(layer, "linear_attn") else _attention(layer.self_attn, config)
    return split_layer(layer, config, activation=config.hidden_act, offset=True, mixer=mixer)


def _attention(attention: Any, config: Any) -> AttentionParts:
    common = split_attention(attention, config, window=None, has_head_norms=True, offset=True)
    return replace(common, is_gated=True)


def _recurrent(mixer: Any) -> RecurrentParts:
    inputs = next(names for names in INPUTS if hasattr(mixer, names[0]))
    return recurrent_of(mixer, inputs=inputs, output="out_proj")
