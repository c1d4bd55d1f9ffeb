"""GLM-4 and the text of GLM-4.6V-Flash: one matrix for gate and up, part of a head turns; from 0414 on four norms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loradock.training.backends.fast.families.base import (
    activation_of,
    common_model,
    decoder_of,
    norm_of,
    split_attention,
    tables_of,
)
from loradock.training.backends.fast.families.parts import DenseParts, LayerParts, ModelParts, Tables


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    layers = [_layer(layer, decoder.config) for layer in decoder.layers]
    tables = _tables(decoder.rotary_emb, positions=positions)
    return common_model(model, positions=positions, layers=layers, tables=tables)


def _tables(rotary: Any, *, positions: int) -> Tables:
    """A model that sees repeats each angle in the next column, as heads turn; the kernels, in the other half."""
    tables = tables_of(rotary, positions=positions)
    if not hasattr(rotary, "mrope_section"):
        return tables
    return {kind: (cos[:, ::2].repeat(1, 2), sin[:, ::2].repeat(1, 2)) for kind, (cos, sin) in tables.items()}


def _layer(layer: Any, config: Any) -> LayerParts:
    mlp, has_out_norms = layer.mlp, hasattr(layer, "post_mlp_layernorm")
    return LayerParts(
        mixer_norm=norm_of(layer.input_layernorm),
        mixer=replace(split_attention(layer.self_attn, config, window=None), is_interleaved=True),
        mixer_out_norm=norm_of(layer.post_self_attn_layernorm) if has_out_norms else None,
        mlp_norm=norm_of(layer.post_attention_layernorm),
        mlp=DenseParts(gate_up=(mlp.gate_up_proj,), activation=activation_of(config.hidden_act), down=mlp.down_proj),
        mlp_out_norm=norm_of(layer.post_mlp_layernorm) if has_out_norms else None,
    )
