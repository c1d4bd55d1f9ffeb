"""MiniMax-M2: one norm over all query heads, one over all key heads; routers of sigmoids with a correction."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_layer
from loradock.training.backends.fast.families.parts import ModelParts, RouterParts, Unfit


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    config = decoder_of(model).config
    layers = [
        split_layer(layer, config, activation=config.hidden_act, has_head_norms=True, router=_router)
        for layer in decoder_of(model).layers
    ]
    return common_model(model, positions=positions, layers=layers)


def _router(mlp: Any) -> RouterParts:
    if mlp.jitter_noise:
        raise Unfit(f"its routers read hidden states with noise (router_jitter_noise {mlp.jitter_noise})")
    return RouterParts(
        weight=mlp.gate.weight.detach(),
        active=mlp.gate.top_k,
        scores="sigmoid",
        correction=mlp.e_score_correction_bias,
    )
