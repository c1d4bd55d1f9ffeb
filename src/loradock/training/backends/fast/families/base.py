"""The parts that the fast engine computes with, and what the modules of families share to read them off a model."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers.integrations.moe import _default_apply_gate

from loradock.training.backends.fast.attention.base import Rule
from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.token_rows import RowParameter, bare, rows_of

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
Tables = dict[str, tuple[torch.Tensor, torch.Tensor]]
SHARED = ("shared_experts", "shared_expert")
"""What transformers' classes call the experts that every token goes through."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """An RMS norm (Zhang and Sennrich 2019). `offset`: Gemma's, which multiplies by 1 + weight."""

    weight: torch.Tensor
    epsilon: float
    offset: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseParts:
    """A gated MLP. `gate_up` are modules that read the same input: one each, or one for both."""

    gate_up: tuple[Any, ...]
    activation: Activation
    down: Any

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return self.gate_up, (self.down,)


@dataclass(frozen=True, kw_only=True, eq=False)
class RouterParts:
    """A frozen router: `weight` [experts, hidden], and how its logits become the `active` experts of a token.

    A token's experts are those with the highest scores, each weighted by its own, times `factor`; where the scores are
    the `logits` themselves, by the softmax over those of its experts. `bias` [experts] is added to the logits,
    `correction` float32 [experts] to the scores for the choice alone. With `groups` (count, chosen) they are chosen
    from so many of these equal groups, whose two best scores are highest in sum. Where `is_normalised` the weights of a
    token are divided by their sum, or by `floor` where that is larger. `is_float32`: the logits are not rounded to the
    dtype of the hidden states.
    """

    weight: torch.Tensor
    active: int
    scores: Literal["softmax", "sigmoid", "logits"] = "softmax"
    bias: torch.Tensor | None = None
    correction: torch.Tensor | None = None
    groups: tuple[int, int] | None = None
    is_normalised: bool = True
    floor: float = 0.0
    factor: float = 1.0
    is_float32: bool = False


@dataclass(frozen=True, kw_only=True)
class Clamp:
    """Of the gate of experts whose gate and up lie in turns: see `Kernels.clamped_gate`."""

    alpha: float
    limit: float


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureParts:
    """A mixture of experts. `experts`: transformers' module of them, within PEFT's wrappers where it has adapters.

    `apply_gate`: the function of transformers' class that `activation` or `clamp` stand for.
    `shared`: what every token goes through, too; with `shared_gate`, a linear module of one output, times its sigmoid.
    """

    router: RouterParts
    experts: Any
    activation: Activation | Clamp
    apply_gate: Any = _default_apply_gate
    shared: DenseParts | None = None
    shared_gate: Any = None

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input: those of the shared expert, its gate last."""
        shared = () if self.shared is None else self.shared.groups()
        return shared if self.shared_gate is None else (*shared, (self.shared_gate,))


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionParts:
    """Attention. `qkv` are modules that read the same input: one each, or one for all.

    `heads` are (queries, keys and values, size). The norms of queries and keys are of each head, or of all at once,
    which the length of their weight says. `rotary` names the table of positions, None: nothing turns; keys do not
    where `turns_keys` is False, without these norms; `is_interleaved`: a column turns with the next one, not with that
    of the other half. `is_gated`: after each query head lies one of the same size, by whose sigmoid the head's output
    is multiplied.
    """

    qkv: tuple[Any, ...]
    heads: tuple[int, int, int]
    rule: Rule
    output: Any
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary: str | None = ""
    is_interleaved: bool = False
    turns_keys: bool = True
    is_gated: bool = False

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return self.qkv, (self.output,)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecurrentParts:
    """A layer that keeps a state from token to token. `inputs` are modules that read the same input.

    `inner` makes of their joined outputs [documents, length, sum of out] what `output` reads, [documents, length, in],
    by transformers' own kernels, differentiably; nothing that comes later in a document changes what came before.
    """

    inputs: tuple[Any, ...]
    inner: Callable[[torch.Tensor], torch.Tensor]
    output: Any

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return self.inputs, (self.output,)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerParts:
    """One decoder layer: what mixes tokens, and what each token goes through alone, each after a norm.

    Norms that a family does not have are None. What a half gives is added to the residual times `residual_scale`.
    """

    mixer_norm: Norm
    mixer: AttentionParts | RecurrentParts
    mlp_norm: Norm
    mlp: DenseParts | MixtureParts
    mixer_out_norm: Norm | None = None
    mlp_out_norm: Norm | None = None
    residual_scale: float = 1.0

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return *self.mixer.groups(), *self.mlp.groups()


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelParts:
    """A decoder. `tables`: name -> (cos, sin), float32 [positions, rotated part of a head].

    Logits are multiplied with `logit_scale`. `embedding_rows`, `head_rows`: rows of new tokens that are trained, in the
    place of the frozen ones.
    """

    embedding: torch.Tensor
    embedding_scale: float
    tables: Tables
    layers: tuple[LayerParts, ...]
    norm: Norm
    head: torch.Tensor
    softcap: float | None = None
    logit_scale: float = 1.0
    embedding_rows: RowParameter | None = None
    head_rows: RowParameter | None = None


class Unfit(Exception):
    """This model or request is not for the fast engine; the text says why."""


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


def rule_of(
    attention: Any, *, window: int | None, softcap: float | None = None, sinks: torch.Tensor | None = None
) -> Rule:
    """How this attention module weighs. Unfit where it drops weights at random."""
    if getattr(attention, "attention_dropout", 0.0):
        raise Unfit(f"its attention has a dropout of {attention.attention_dropout}")
    return Rule(scale=float(attention.scaling), window=window, softcap=softcap, sinks=sinks)


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
    mixer: AttentionParts | RecurrentParts | None = None,
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

    def inner(joined: torch.Tensor) -> torch.Tensor:
        exact = joined.dtype == torch.float32
        weights = {name: each.detach().float() for name, each in between.named_parameters()} if exact else {}
        return torch.func.functional_call(between, weights, (joined,))

    return RecurrentParts(inputs=modules, inner=inner, output=getattr(mixer, output))


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
