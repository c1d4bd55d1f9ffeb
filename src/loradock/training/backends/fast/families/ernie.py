"""ERNIE-4.5: rotary columns side by side, and in a mixture a correction of what a router chooses by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_attention, split_layer
from loradock.training.backends.fast.families.parts import ModelParts, RouterParts


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    layers = [
        split_layer(
            layer,
            config,
            activation=config.hidden_act,
            router=_router,
            mixer=replace(split_attention(layer.self_attn, config, window=None), is_interleaved=True),
        )
        for layer in decoder_of(model).layers
    ]
    return common_model(model, positions=positions, layers=layers)


def _router(mlp: Any) -> RouterParts:
    router = mlp.gate
    return RouterParts(
        weight=router.weight.detach(),
        active=router.top_k,
        correction=router.moe_statics.e_score_correction_bias.detach().squeeze(0),
        floor=float(router.norm_min),
        is_float32=True,
    )
