"""What the modules of families share to read its parts off a model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from loradock.model.recurrence import chunk_tokens
from loradock.plan.memory.recurrent import chunk_of
from loradock.training.backends.fast.attention.base import Rule
from loradock.training.backends.fast.families.parts import (
    AttentionParts,
    DenseParts,
    LatentParts,
    LayerParts,
    MixtureParts,
    ModelParts,
    Norm,
    RecurrentParts,
    RouterParts,
    Tables,
    Unfit,
)
from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.token_rows import bare, rows_of

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
SHARED = ("shared_experts", "shared_expert")
"""What transformers' classes call the experts that every token goes through."""


def decoder_of(model: Any) -> Any:
    """The decoder (embedding, layers, norm) inside a causal LM, with or without adapters around it."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    return whole.get_decoder()


def norm_of(module: Any, *, offset: bool = False) -> Norm:
    """An RMS norm module as its parts."""
    epsilon = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    return Norm(weight=module.weight.detach(), epsilon=float(epsilon), offset=offset)


def activation_of(name: str) -> Activation:
    """The gate's activation as the kernels name it. Unfit where they have none such."""
    if name not in ACTIVATIONS:
        raise Unfit(f"its activation {name} has no kernel here")
    return ACTIVATIONS[name]


def tables_of(rotary: Any, *, positions: int, kinds: Sequence[str] = ()) -> Tables:
    """Cosines and sines of every position, by the model's own rotary module; one table a kind of layer.

    Unfit where the angles depend on the length of the input, not on the position alone.
    """
    found = {kind: answer_of(rotary, kind, positions=positions) for kind in (kinds or ("",))}
    return {kind: (cos[0].contiguous(), sin[0].contiguous()) for kind, (cos, sin) in found.items()}


def answer_of(rotary: Any, kind: str = "", *, positions: int) -> Any:
    """What a rotary module says of every position, for a kind of layer where it has several; see `tables_of`."""
    types = rotary.rope_type if isinstance(rotary.rope_type, dict) else {"": rotary.rope_type}
    for rope in types.values():
        if "dynamic" in rope or (rope == "longrope" and positions > original_positions(rotary.config)):
            raise Unfit(f"its rotary embedding ({rope}) changes with the length of the input")
    device = next(iter(rotary.buffers())).device
    like = torch.zeros(1, dtype=torch.float32, device=device)
    return rotary(like, torch.arange(positions, device=device)[None], *([kind] if kind else []))


def original_positions(config: Any) -> int:
    """Positions up to which long-range rotary embeddings keep their short factors."""
    given = (getattr(config, "rope_parameters", None) or {}).get("original_max_position_embeddings")
    return int(given or getattr(config, "original_max_position_embeddings", None) or config.max_position_embeddings)


def rule_of(attention: Any, *, window: int | None, softcap: float | None = None) -> Rule:
    """How this attention module weighs. Unfit where it drops weights at random."""
    if attention.attention_dropout:
        raise Unfit(f"its attention has a dropout of {attention.attention_dropout}")
    return Rule(scale=float(attention.scaling), window=window, softcap=softcap)


def heads_of(attention: Any, config: Any) -> tuple[int, int, int]:
    """(query heads, key and value heads, size of a head)."""
    return config.num_attention_heads, config.num_key_value_heads, attention.head_dim


def softmax_router(mlp: Any) -> RouterParts:
    """The router of Mixtral and Qwen. Unfit where it reads hidden states with noise."""
    if getattr(mlp, "jitter_noise", 0):
        raise Unfit(f"its routers read hidden states with noise (router_jitter_noise {mlp.jitter_noise})")
    router = mlp.gate
    return RouterParts(
        weight=router.weight.detach(), active=router.top_k, is_normalised=getattr(router, "norm_topk_prob", True)
    )


def split_attention(
    attention: Any, config: Any, *, window: int | None, has_head_norms: bool = False, offset: bool = False
) -> AttentionParts:
    """Attention of the common build: q, k and v apart."""
    return AttentionParts(
        qkv=(attention.q_proj, attention.k_proj, attention.v_proj),
        heads=heads_of(attention, config),
        rule=rule_of(attention, window=window),
        output=attention.o_proj,
        query_norm=norm_of(attention.q_norm, offset=offset) if has_head_norms else None,
        key_norm=norm_of(attention.k_norm, offset=offset) if has_head_norms else None,
    )


def split_layer(
    layer: Any,
    config: Any,
    *,
    activation: str,
    window: int | None = None,
    has_head_norms: bool = False,
    offset: bool = False,
    router: Callable[[Any], RouterParts] = softmax_router,
    mixer: AttentionParts | LatentParts | RecurrentParts | None = None,
    mlp: DenseParts | MixtureParts | None = None,
) -> LayerParts:
    """A layer of the common build: q, k and v apart, gate and up apart or experts, one norm before each half.

    `router` reads that of a mixture off the layer's second half; `mixer` and `mlp` are halves that are built otherwise.
    """
    return LayerParts(
        mixer_norm=norm_of(layer.input_layernorm, offset=offset),
        mixer=mixer
        or split_attention(layer.self_attn, config, window=window, has_head_norms=has_head_norms, offset=offset),
        mlp_norm=norm_of(layer.post_attention_layernorm, offset=offset),
        mlp=mlp or mlp_of(layer.mlp, router, activation=activation_of(activation)),
    )


class Columns(torch.nn.Module):
    """In the place of a linear layer: its part of what all that read the same input gave."""

    def __init__(self, first: int, stop: int) -> None:
        super().__init__()
        self.first, self.stop = first, stop

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """[.., sum of out] -> [.., out]."""
        return joined[..., self.first : self.stop]


def recurrent_of(mixer: Any, *, inputs: Sequence[str], output: str) -> RecurrentParts:
    """A mixer of transformers': `inputs` name the linear layers that read its input, `output` the one at its end.

    What is between is its own forward, with the linear layers passed by.
    """
    modules = tuple(getattr(mixer, name) for name in inputs)
    stops = list(itertools.accumulate(module.out_features for module in modules))
    columns = {name: Columns(*span) for name, span in zip(inputs, itertools.pairwise([0, *stops]), strict=True)}
    between = copy.copy(mixer)
    between.training = False  # else Mamba's asks its output layer for weights that a fused kernel would take
    between._modules = {**mixer._modules, **columns, output: torch.nn.Identity()}

    chunk = chunk_tokens(mixer)

    def inner(joined: torch.Tensor) -> torch.Tensor:
        if hasattr(mixer, "chunk_size"):
            between.chunk_size = chunk_of(joined.shape[1], chunk=chunk)
        exact = joined.dtype == torch.float32
        weights = {name: weight.detach().float() for name, weight in between.named_parameters()} if exact else {}
        return torch.func.functional_call(between, weights, (joined,))

    return RecurrentParts(inputs=modules, inner=inner, output=getattr(mixer, output), chunk=chunk)


def mlp_of(mlp: Any, router: Callable[[Any], RouterParts], *, activation: Activation) -> DenseParts | MixtureParts:
    """The second half of a layer of the common build."""
    if not hasattr(mlp, "experts"):
        return dense_of(mlp, activation=activation)
    shared = next((each for name in SHARED if (each := getattr(mlp, name, None)) is not None), None)
    return MixtureParts(
        router=router(mlp),
        experts=mlp.experts,
        activation=activation,
        shared=None if shared is None else dense_of(shared, activation=activation),
        shared_gate=getattr(mlp, "shared_expert_gate", None),
    )


def dense_of(mlp: Any, *, activation: Activation) -> DenseParts:
    """A gated MLP of the common build."""
    return DenseParts(gate_up=(mlp.gate_proj, mlp.up_proj), activation=activation, down=mlp.down_proj)


def common_model(
    model: Any,
    *,
    positions: int,
    layers: Sequence[LayerParts],
    offset: bool = False,
    kinds: Sequence[str] = (),
    tables: Tables | None = None,
    norm: Norm | None = None,
) -> ModelParts:
    """A model of the common build around its layers; `kinds` are those of its tables of positions, or `tables` these;
    `norm` is the last one, where it is not called so.

    A model without a rotary module has none.
    """
    decoder, head = decoder_of(model), model.get_output_embeddings()
    if tables is None:
        rotary = decoder.rotary_emb
        tables = {} if rotary is None else tables_of(rotary, positions=positions, kinds=kinds)
    return ModelParts(
        embedding=bare(decoder.embed_tokens).weight.detach(),
        embedding_scale=1.0,
        tables=tables,
        layers=tuple(layers),
        norm=norm or norm_of(decoder.norm, offset=offset),
        head=bare(head).weight.detach(),
        embedding_rows=rows_of(decoder.embed_tokens),
        head_rows=rows_of(head),
    )
