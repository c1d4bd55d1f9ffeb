"""GLM-4.5 and dots: sigmoid routers that choose by a corrected score within groups; shared experts."""

from __future__ import annotations

from typing import Any

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_layer
from loradock.training.backends.fast.families.parts import ModelParts, RouterParts

FLOOR = 1e-20
"""What transformers adds to the sum of a token's scores."""


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
            router=router_of,
        )
        for layer in decoder_of(model).layers
    ]
    return common_model(model, positions=positions, layers=layers)


def router_of(mlp: Any) -> RouterParts:
    """Sigmoid scores, corrected for the choice alone."""
    router = mlp.gate
    return RouterParts(
        weight=router.weight.detach(),
        active=router.top_k,
        scores="sigmoid",
        correction=router.e_score_correction_bias,
        groups=(router.num_group, router.topk_group) if router.topk_group < router.num_group else None,
        is_normalised=router.norm_topk_prob,
        floor=FLOOR,
        factor=float(router.routed_scaling_factor),
        is_float32=True,
    )
