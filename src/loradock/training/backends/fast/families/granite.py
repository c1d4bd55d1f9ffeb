"""Granite 3 and 4: a Llama or a Mixtral with multipliers; some turn no positions, or keep a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import (
    activation_of,
    common_model,
    decoder_of,
    recurrent_of,
    split_attention,
    split_layer,
)
from loradock.training.backends.fast.families.parts import (
    AttentionParts,
    DenseParts,
    LayerParts,
    MixtureParts,
    ModelParts,
    RecurrentParts,
    RouterParts,
)


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    config = decoder.config
    layers = [_layer(layer, config, is_turned=decoder.rotary_emb is not None) for layer in decoder.layers]
    return replace(
        common_model(model, positions=positions, layers=layers),
        embedding_scale=float(config.embedding_multiplier),
        logit_scale=1.0 / config.logits_scaling,
    )


def _layer(layer: Any, config: Any, *, is_turned: bool) -> LayerParts:
    mixer: AttentionParts | RecurrentParts
    if getattr(layer, "mamba", None) is not None:
        mixer = recurrent_of(layer.mamba, inputs=("in_proj",), output="out_proj")
    else:
        mixer = replace(split_attention(layer.self_attn, config, window=None), rotary="" if is_turned else None)
    common = split_layer(layer, config, activation=config.hidden_act, mixer=mixer, mlp=_mlp(layer, config))
    return replace(common, residual_scale=float(layer.residual_multiplier))


def _mlp(layer: Any, config: Any) -> DenseParts | MixtureParts | None:
    """Experts, an MLP that every token goes through, or both; None for an MLP of the common build."""
    mixture, every = getattr(layer, "block_sparse_moe", None), getattr(layer, "shared_mlp", None)
    activation = activation_of(config.hidden_act)
    shared = every and DenseParts(gate_up=(every.input_linear,), activation=activation, down=every.output_linear)
    if mixture is None:
        return shared
    router = RouterParts(weight=mixture.router.weight.detach(), active=mixture.router.top_k, scores="logits")
    return MixtureParts(router=router, experts=mixture.experts, activation=activation, shared=shared)
