"""Llama 1 to 3, and what is built like it: SmolLM3, some of whose layers do not turn queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_attention, split_layer
from loradock.training.backends.fast.families.parts import LayerParts, ModelParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    return common_model(model, positions=positions, layers=[_layer(each, config) for each in decoder_of(model).layers])


def _layer(layer: Any, config: Any) -> LayerParts:
    attention = layer.self_attn
    mixer = split_attention(attention, config, window=getattr(attention, "sliding_window", None))
    if not getattr(attention, "use_rope", True):
        mixer = replace(mixer, rotary=None)
    return split_layer(layer, config, activation=config.hidden_act, mixer=mixer)
