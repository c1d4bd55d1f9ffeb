"""Qwen 2 and 3: biases (2) or norms of each head (3), and windows in some of the layers."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_layer
from loradock.training.backends.fast.families.parts import ModelParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    layers = [
        split_layer(
            layer,
            config,
            window=getattr(layer.self_attn, "sliding_window", None),
            activation=config.hidden_act,
            has_head_norms=hasattr(layer.self_attn, "q_norm"),
        )
        for layer in decoder_of(model).layers
    ]
    return common_model(model, positions=positions, layers=layers)
