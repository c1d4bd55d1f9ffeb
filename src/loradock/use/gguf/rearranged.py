"""Layers beside the experts that llama.cpp has in another arrangement than transformers: attention that is compressed,
gated delta nets, and state spaces. From llama.cpp's own converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Take = Callable[["torch.Tensor"], "torch.Tensor"]
Changes = Mapping[str, tuple[tuple[str | None, Take], ...]]
"""{ending of a class' name: (ending of llama.cpp's name of what is made of it, or None for its usual name; how)}. The
first ending that fits holds."""


def compressed(config: Any) -> Changes:
    """DeepSeek's: the matrix that opens keys and values is two tensors, a matrix a head, that of keys transposed."""
    heads, keys, values = config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim

    def of_head(value: torch.Tensor) -> torch.Tensor:
        return value.view(heads, keys + values, value.shape[-1])

    return {
        "self_attn.kv_b_proj.weight": (
            ("attn_k_b.weight", lambda value: of_head(value)[:, :keys].transpose(1, 2)),
            ("attn_v_b.weight", lambda value: of_head(value)[:, keys:]),
        )
    }


def _plus_one(value: torch.Tensor) -> torch.Tensor:
    return value.float() + 1


def _decay(value: torch.Tensor) -> torch.Tensor:
    return -value.float().exp()


def _channels(value: torch.Tensor) -> torch.Tensor:
    """The kernel of each channel, [channels, width]."""
    return value.squeeze(1)


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def delta_net(config: Any) -> Changes:
    """Qwen3-Next's: queries, keys, values and gates lie by head of keys there, here one after the other."""
    heads, keys = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // heads * config.linear_value_head_dim

    def split(value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        by_head = value.view(heads, 2 * keys + 2 * values, value.shape[-1])
        return tuple(part.flatten(0, 1) for part in by_head.split([keys, keys, values, values], dim=1))

    def joined(value: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.cat(split(value)[:3])

    return {
        "in_proj_qkvz.weight": (("attn_qkv.weight", joined), ("attn_gate.weight", lambda value: split(value)[3])),
        "linear_attn.A_log": (("ssm_a", _decay),),
        "linear_attn.dt_bias": (("ssm_dt.bias", _same),),
        "linear_attn.conv1d.weight": (("ssm_conv1d.weight", _channels),),
        "linear_attn.norm.weight": ((None, _same),),
        "norm.weight": ((None, _plus_one),),
    }


def tiled_delta_net(config: Any) -> Changes:
    """Qwen3.5's: heads of values that share a head of keys lie apart, since llama.cpp repeats keys as a whole."""
    heads, width = config.linear_num_key_heads, config.linear_value_head_dim
    shared = config.linear_num_value_heads // heads
    before = 2 * heads * config.linear_key_head_dim

    def tiled(value: torch.Tensor, *, size: int, dim: int = 0) -> torch.Tensor:
        parts = value.unflatten(dim, (heads, shared, size))
        return parts.transpose(dim, dim + 1).flatten(dim, dim + 2)

    def behind(value: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.cat([value[:before], tiled(value[before:], size=width)])

    each, wide = partial(tiled, size=1), partial(tiled, size=width)
    return {
        "in_proj_qkv.weight": ((None, behind),),
        "in_proj_z.weight": ((None, wide),),
        "in_proj_a.weight": ((None, each),),
        "in_proj_b.weight": ((None, each),),
        "linear_attn.out_proj.weight": ((None, partial(tiled, size=width, dim=1)),),
        "linear_attn.A_log": (("ssm_a", lambda value: _decay(each(value))),),
        "linear_attn.dt_bias": (("ssm_dt.bias", each),),
        "linear_attn.conv1d.weight": (("ssm_conv1d.weight", lambda value: behind(_channels(value))),),
        "linear_attn.norm.weight": ((None, _same),),
        "norm.weight": ((None, _plus_one),),
    }


def _state_space(layer: str, *, inner: int, groups: int) -> Changes:
    """Mamba 2's, where `layer` is what a class calls it."""
    return {
        f"{layer}.A_log": (("ssm_a", lambda value: _decay(value).unsqueeze(1)),),
        f"{layer}.D": (("ssm_d", lambda value: value.unsqueeze(1)),),
        f"{layer}.dt_bias": (("ssm_dt.bias", _same),),
        f"{layer}.conv1d.weight": (("ssm_conv1d.weight", _channels),),
        f"{layer}.norm.weight": (("ssm_norm.weight", lambda value: value.view(groups, inner // groups)),),
    }


def granite(config: Any) -> Changes:
    """Granite's: gate and up of the shared expert apart, and its state spaces, where it has them."""
    changes: Changes = {
        "block_sparse_moe.router.weight": (("ffn_gate_inp.weight", _same),),
        "shared_mlp.input_linear.weight": (
            ("ffn_gate_shexp.weight", lambda value: value.chunk(2)[0]),
            ("ffn_up_shexp.weight", lambda value: value.chunk(2)[1]),
        ),
    }
    if not hasattr(config, "mamba_expand"):
        return changes
    inner = config.hidden_size * config.mamba_expand
    return {**changes, **_state_space("mamba", inner=inner, groups=config.mamba_n_groups)}


def nemotron(config: Any) -> Changes:
    """Nemotron 3's state spaces."""
    return _state_space("mixer", inner=config.mamba_num_heads * config.mamba_head_dim, groups=config.n_groups)
