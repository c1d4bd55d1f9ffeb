"""Llama 1 to 3, and what is built like it."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_layer
from loradock.training.backends.fast.families.parts import ModelParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    layers = [
        split_layer(layer, config, window=None, activation=config.hidden_act) for layer in decoder_of(model).layers
    ]
    return common_model(model, positions=positions, layers=layers)
