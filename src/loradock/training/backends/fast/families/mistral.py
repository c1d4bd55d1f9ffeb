"""Mistral: a Llama whose layers may all look through a sliding window; Ministral 3's far queries have a temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from loradock.training.backends.fast.families.base import common_model, decoder_of, split_layer, tables_of
from loradock.training.backends.fast.families.parts import ModelParts, Tables

SCALED = "scaled"


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    layers = [
        split_layer(layer, decoder.config, window=decoder.config.sliding_window, activation=decoder.config.hidden_act)
        for layer in decoder.layers
    ]
    tables = _tables(decoder, positions=positions)
    if SCALED in tables:
        layers = [replace(each, mixer=replace(each.mixer, query_rotary=SCALED)) for each in layers]
    return common_model(model, positions=positions, layers=layers, tables=tables)


def _tables(decoder: Any, *, positions: int) -> Tables:
    """The usual table, and where a document reaches so far, that of queries, which are multiplied after they turned."""
    tables = tables_of(decoder.rotary_emb, positions=positions)
    cos, sin = tables[""]
    scale = temperatures(decoder.config, positions=positions, device=cos.device)
    return tables if scale is None else {**tables, SCALED: (cos * scale[:, None], sin * scale[:, None])}


def temperatures(config: Any, *, positions: int, device: torch.device) -> torch.Tensor | None:
    """What multiplies the query of each position, float32 [positions]; None where that is 1 everywhere."""
    rope = getattr(config, "rope_parameters", None) or {}
    beta, near = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
    if not beta or not near or positions <= near:
        return None
    return 1 + beta * torch.log1p((torch.arange(positions, device=device) / near).floor())
