"""The parts that the fast engine computes with: what a module of a family reads off a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers.integrations.moe import _default_apply_gate

from loradock.training.backends.fast.attention.base import Rule
from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.token_rows import RowParameter

Table = tuple[torch.Tensor, torch.Tensor]
Tables = dict[str, Table]


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
    token are divided by their sum, or by `floor` where that is larger. `scale` [experts] multiplies the weights of each
    expert in the end. `is_float32`: the logits are not rounded to the
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
    scale: torch.Tensor | None = None
    is_float32: bool = False


@dataclass(frozen=True, kw_only=True)
class Clamp:
    """Of the gate of experts whose gate and up lie in turns: see `Kernels.clamped_gate`."""

    alpha: float
    limit: float


@dataclass(frozen=True, kw_only=True, eq=False)
class BesideParts:
    """A gated MLP beside a mixture: each reads the same states through a norm of its own, and each output has one."""

    dense: DenseParts
    norm: Norm
    out_norm: Norm
    router_norm: Norm
    experts_norm: Norm
    experts_out_norm: Norm


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureParts:
    """A mixture of experts. `experts`: transformers' module of them, within PEFT's wrappers where it has adapters.

    `apply_gate`: the function of transformers' class that `activation` or `clamp` stand for.
    `shared`: what every token goes through, too; with `shared_gate`, a linear module of one output, times its sigmoid.
    `beside` is in its place where the two do not read the same.
    """

    router: RouterParts
    experts: Any
    activation: Activation | Clamp
    apply_gate: Any = _default_apply_gate
    shared: DenseParts | None = None
    shared_gate: Any = None
    beside: BesideParts | None = None

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input: those of the shared expert, its gate last."""
        if self.beside is not None:
            return self.beside.dense.groups()
        shared = () if self.shared is None else self.shared.groups()
        return shared if self.shared_gate is None else (*shared, (self.shared_gate,))


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionParts:
    """Attention. `qkv` are modules that read the same input: one each, or one for all.

    `heads` are (queries, keys and values, size). The norms of queries and keys are of each head, or of all at once,
    which the length of their weight says; `turns_first`: they are normed after they were turned. Values have a norm,
    too, and without `has_values` no projection: they are the keys as projected. `leaves`: a name by which later layers
    know its keys and values; `reads`: that of the ones it attends to in the place of its own. `rotary` names the
    table of positions, None: nothing turns; keys do not where `turns_keys` is False, without these norms. Queries
    turn by `query_rotary` where that is another. `is_interleaved`: a column turns with the next one, not with that of
    the other half. `is_gated`: after each query head lies one of the same size, by whose sigmoid the head's output is
    multiplied.
    """

    qkv: tuple[Any, ...]
    heads: tuple[int, int, int]
    rule: Rule
    output: Any
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    has_values: bool = True
    leaves: str | None = None
    reads: str | None = None
    turns_first: bool = False
    rotary: str | None = ""
    query_rotary: str | None = None
    is_interleaved: bool = False
    turns_keys: bool = True
    is_gated: bool = False

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return self.qkv, (self.output,)


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentHeads:
    """Heads of attention over latents: how many, and how wide: what does not turn, what does, and values."""

    count: int
    still: int
    turned: int
    values: int

    @property
    def size(self) -> int:
        """Of a query and a key."""
        return self.still + self.turned


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentParts:
    """Attention over latents (DeepSeek-V2, arXiv:2405.04434).

    `inputs` are two modules that read the layer's input. The first gives the queries, each its still part first, or
    where there is a `query_norm` the latent from which `queries` makes them after it. The second gives the latent from
    which `keys_values` makes, after `latent_norm`, each head's still part of a key and its value, and behind it the
    turned part, which the keys of all heads share. `query_scale`, float32 [positions], multiplies queries.
    """

    inputs: tuple[Any, Any]
    query_norm: Norm | None
    queries: Any
    latent_norm: Norm
    keys_values: Any
    output: Any
    heads: LatentHeads
    rule: Rule
    is_interleaved: bool
    query_scale: torch.Tensor | None = None

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        queries = () if self.queries is None else ((self.queries,),)
        return self.inputs, *queries, (self.keys_values,), (self.output,)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecurrentParts:
    """A layer that keeps a state from token to token. `inputs` are modules that read the same input.

    `inner` makes of their joined outputs [documents, length, sum of out] what `output` reads, [documents, length, in],
    by transformers' own kernels, differentiably; nothing that comes later in a document changes what came before.
    Without packages for GPUs they fill a document up to whole chunks of `chunk` tokens.
    """

    inputs: tuple[Any, ...]
    inner: Callable[[torch.Tensor], torch.Tensor]
    output: Any
    chunk: int = 1

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return self.inputs, (self.output,)


@dataclass(frozen=True, kw_only=True, eq=False)
class GatedInputParts:
    """What follows both halves: `gate` reads the hidden states, `output` its activation times the token's input."""

    gate: Any
    output: Any
    activation: Activation

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        return (self.gate,), (self.output,)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenInputParts:
    """What each layer reads of a token: (norm(`projection`(embedding) `projection_scale`) + its row of `table`
    `table_scale`) `scale`, [layers * size], the norm of each layer's part.
    """

    projection: Any
    projection_scale: float
    norm: Norm
    table: torch.Tensor
    table_scale: float
    scale: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerParts:
    """One decoder layer: what mixes tokens, and what each token goes through alone, each between two norms.

    Norms that a family does not have are None. What a half gives is added to the residual times `residual_scale`, what
    comes out of the layer is multiplied with `scale`. `gated_input` follows both halves, before a norm of its own.
    """

    mixer_norm: Norm | None
    mixer: AttentionParts | LatentParts | RecurrentParts
    mlp_norm: Norm | None
    mlp: DenseParts | MixtureParts
    mixer_out_norm: Norm | None = None
    mlp_out_norm: Norm | None = None
    residual_scale: float = 1.0
    scale: float = 1.0
    gated_input: GatedInputParts | None = None
    gated_input_norm: Norm | None = None

    def groups(self) -> tuple[tuple[Any, ...], ...]:
        """The linear modules in groups with a common input, in the order of the forward."""
        last = () if self.gated_input is None else self.gated_input.groups()
        return *self.mixer.groups(), *self.mlp.groups(), *last


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
    token_inputs: TokenInputParts | None = None


class Unfit(Exception):
    """This model or request is not for the fast engine; the text says why."""
