"""Qwen3-Next and Qwen3.5: the gated delta rule in most layers, gated attention in the others; norms of 1 + weight."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import softplus

from loradock.training.backends.fast.families.base import (
    AttentionParts,
    LayerParts,
    ModelParts,
    RecurrentParts,
    common_model,
    decoder_of,
    split_attention,
    split_layer,
)

JOINED = ("in_proj_qkvz", "in_proj_ba")
APART = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
Pieces = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""What is convolved [documents, length, channels], the output's gate [.., heads, size], and b and a [.., heads]."""


def parts(model: Any, *, positions: int) -> ModelParts:
    """See `families.read`."""
    decoder = decoder_of(model)
    layers = [_layer(layer, decoder.config) for layer in decoder.layers]
    return common_model(model, positions=positions, layers=layers, offset=True)


def _layer(layer: Any, config: Any) -> LayerParts:
    mixer = _recurrent(layer.linear_attn) if hasattr(layer, "linear_attn") else _attention(layer.self_attn, config)
    return split_layer(layer, config, activation=config.hidden_act, offset=True, mixer=mixer)


def _attention(attention: Any, config: Any) -> AttentionParts:
    common = split_attention(attention, config, window=None, has_head_norms=True, offset=True)
    return replace(common, is_gated=True)


def _recurrent(mixer: Any) -> RecurrentParts:
    is_joined = hasattr(mixer, JOINED[0])
    return RecurrentParts(
        inputs=tuple(getattr(mixer, name) for name in (JOINED if is_joined else APART)),
        inner=inner_of(mixer, _joined if is_joined else _apart),
        output=mixer.out_proj,
    )


def inner_of(mixer: Any, pieces: Callable[[Any, torch.Tensor], Pieces]) -> Callable[[torch.Tensor], torch.Tensor]:
    """See `RecurrentParts`: the gated delta rule (Yang, Kautz and Hatamizadeh 2024) by the model's own kernels."""
    home = sys.modules[type(mixer).__module__]

    def inner(joined: torch.Tensor) -> torch.Tensor:
        mixed, z, b, a = pieces(mixer, joined)
        weight = mixer.conv1d.weight.detach().to(joined.dtype).squeeze(1)
        convolved = home.causal_conv1d_fn(mixed.transpose(1, 2), weight, None, activation=mixer.activation)
        keys, values = mixer.key_dim, mixer.value_dim
        query, key, value = convolved.transpose(1, 2).split([keys, keys, values], dim=-1)
        decay = -mixer.A_log.detach().float().exp() * softplus(a.float() + mixer.dt_bias.detach())
        out, _ = home.torch_chunk_gated_delta_rule(
            query.unflatten(-1, (-1, mixer.head_k_dim)),
            key.unflatten(-1, (-1, mixer.head_k_dim)),
            value.unflatten(-1, (-1, mixer.head_v_dim)),
            g=decay,
            beta=b.sigmoid(),
            use_qk_l2norm_in_kernel=True,
        )
        return mixer.norm(out.flatten(0, 2), z.reshape(-1, mixer.head_v_dim)).view(*joined.shape[:2], -1)

    return inner


def _apart(mixer: Any, joined: torch.Tensor) -> Pieces:
    """Of Qwen3.5, whose inputs are linear layers of their own."""
    heads = mixer.num_v_heads
    mixed, z, b, a = joined.split([mixer.conv_dim, mixer.value_dim, heads, heads], dim=-1)
    return mixed, z.unflatten(-1, (heads, -1)), b, a


def _joined(mixer: Any, joined: torch.Tensor) -> Pieces:
    """Of Qwen3-Next, which lays them out by key head."""
    sizes = [mixer.conv_dim + mixer.value_dim, 2 * mixer.num_v_heads]
    query, key, value, z, b, a = mixer.fix_query_key_value_ordering(*joined.split(sizes, dim=-1))
    return torch.cat([each.flatten(2) for each in (query, key, value)], dim=-1), z, b, a
