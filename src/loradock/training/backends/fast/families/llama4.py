"""Llama 4's text: layers without positions whose queries have a temperature, chunks of attention, scaled inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from loradock.model.experts import llama4
from loradock.training.backends.fast.families.base import (
    activation_of,
    answer_of,
    common_model,
    decoder_of,
    mlp_of,
    split_attention,
    split_layer,
)
from loradock.training.backends.fast.families.parts import (
    AttentionParts,
    LayerParts,
    MixtureParts,
    ModelParts,
    Norm,
    RouterParts,
    Tables,
    Unfit,
)

TURNED, TEMPERATURE = "turned", "temperature"


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    layers = [_layer(layer, decoder.config) for layer in decoder.layers]
    tables = _tables(decoder.rotary_emb, decoder.config, positions=positions)
    return common_model(model, positions=positions, layers=layers, tables=tables)


def _tables(rotary: Any, config: Any, *, positions: int) -> Tables:
    """The angles, of which each stands for two columns; and what queries are multiplied with, as turns by none."""
    if config.use_qk_norm and rotary.attention_scaling != 1.0:
        raise Unfit(f"its rotary embedding scales heads by {rotary.attention_scaling} before their norm")
    angles = answer_of(rotary, positions=positions)[0]
    whole = torch.arange(1, positions + 1, dtype=torch.float32, device=angles.device).div(config.floor_scale).floor()
    scale = (torch.log1p(whole) * config.attn_scale + 1.0)[:, None].expand(-1, 2 * angles.shape[1]).contiguous()
    return {
        TURNED: (angles.real.repeat(1, 2), angles.imag.repeat(1, 2)),
        TEMPERATURE: (scale, torch.zeros_like(scale)),
    }


def _layer(layer: Any, config: Any) -> LayerParts:
    activation = config.hidden_act
    mlp = mlp_of(layer.feed_forward, _router, activation=activation_of(activation))
    if isinstance(mlp, MixtureParts):
        mlp = replace(mlp, apply_gate=llama4.classes()[1]._apply_gate)
    return split_layer(layer, config, activation=activation, mixer=_attention(layer, config), mlp=mlp)


def _attention(layer: Any, config: Any) -> AttentionParts:
    attention = layer.self_attn
    common = split_attention(attention, config, window=None)
    is_chunked = config.layer_types[attention.layer_idx] == "chunked_attention"
    common = replace(common, rule=replace(common.rule, chunk=config.attention_chunk_size if is_chunked else None))
    if not attention.use_rope:
        return replace(common, rotary=TEMPERATURE if attention.attn_temperature_tuning else None, turns_keys=False)
    # Heads are normed after they were turned, which is the same as before: to turn keeps their lengths.
    ones, has_norm = layer.input_layernorm.weight.detach().new_ones(attention.head_dim), hasattr(attention, "qk_norm")
    norm = Norm(weight=ones, epsilon=float(attention.qk_norm.eps)) if has_norm else None
    return replace(common, rotary=TURNED, is_interleaved=True, query_norm=norm, key_norm=norm)


def _router(mlp: Any) -> RouterParts:
    return RouterParts(
        weight=mlp.router.weight.detach(), active=mlp.router.top_k, scores="sigmoid", is_normalised=False
    )
