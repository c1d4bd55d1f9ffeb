"""How wide a decoder layer is: what one token has in it, and its weights."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from loradock.catalog.families import BY_DECODER
from loradock.facts import COUNTED_TOKENS, LinearShape, ModelFacts, Recurrence
from loradock.plan.memory import experts
from loradock.plan.memory.base import widest_input, widest_matrix

PROJECTIONS = re.compile(r"\.((q|k|v|qkv)_proj|(q|kv)_[ab]_proj\w*|in_proj\w*)$")
"""How queries, keys and values are called beside a mixture, and what goes into a recurrence (`in_proj_qkvz`); what is
made of latents, and these (`q_a_proj`, `kv_a_proj_with_mqa`)."""
QUERIES = re.compile(r"\.q(_b)?_proj$")
OF_LATENT = "kv_b_proj"
"""What makes keys and values of a latent."""
LAYER = re.compile(r"\.layers\.(\d+)\.")
JOINED = ".input_linear"
"""How gate and up are called that are one layer."""
GATED = (".gate_proj", ".up_proj", JOINED)
TOKEN_INPUT = "per_layer_input_gate"
"""What gates what a layer reads of the token itself (Gemma 4)."""


@dataclass(frozen=True, kw_only=True)
class Widths:
    """One decoder layer, as the mean over all: elements of a token, and weights.

    `attended`: all query heads together, `values`: what they give, narrower where values are; `projected`: queries,
    keys and values, or a recurrence's inputs; `normed`: of these, what has a norm of its own, and keys that are joined
    of two parts; `inner`: the MLP's product; `outputs`: of all linears; `capped_heads`: query heads whose scores are
    soft-capped; `ranks`: of all adapters of the layer; `adapted_inputs`: what these read, one by one; `weights`: of its
    linears and experts, `active_weights`: those that a token is multiplied with, `experts`: how many it has, `pairs`:
    of a token; `gated`: what goes into the gates, of all of its experts; `router_bytes`: what a router and the order of
    pairs keep; `widest`: of the largest group of them with a common input, which is made dense at once: gate and up, as
    a rule, or those of one expert. `has_out_norms`: what goes into a norm after each half is kept, too; `token_input`:
    what a layer reads of the token itself; of such models `gated_by_layer`, since it differs.
    `recurrent_launches`, `recurrent_bytes`: of what no kernel computes of recurrent layers, a pass forward and
    backward, and what it reads and writes for a token.
    """

    layers: int
    hidden: int
    attended: float
    values: float
    projected: float
    normed: float
    inner: int
    outputs: float
    capped_heads: int
    ranks: float
    adapted_inputs: float
    weights: float
    active_weights: float
    experts: float
    pairs: float
    gated: float
    router_bytes: float
    widest: int
    vocabulary: int
    has_out_norms: bool
    token_input: float = 0.0
    gated_by_layer: tuple[float, ...] = ()
    recurrent_launches: float = 0.0
    recurrent_bytes: float = 0.0

    @property
    def inputs(self) -> float:
        """Inputs of the four groups of linear layers: projections, attention's output, gate and up, down."""
        return 2 * self.hidden + self.values + self.inner

    @property
    def has_grouped_heads(self) -> bool:
        """Whether there are fewer key heads than query heads."""
        return self.projected < 3 * self.attended


def widths(model: ModelFacts, *, rank: int) -> Widths:
    """Those of the model with adapters of this rank on its targets."""
    targets, family = set(model.targets), BY_DECODER.get(model.decoder)
    share = 1 / max(1, model.layers)
    recurrent = model.recurrence or Recurrence(layers=0)
    attended = values = sum(layer.columns for layer in _ending(model, "o_proj")) * share or float(model.hidden)
    outputs = sum(layer.rows for layer in model.linears) * share
    inner = widest_input(model)
    gated, widest = 2.0 * inner, 2 * inner * model.hidden
    if model.experts:
        dense = [layer for layer in model.linears if layer.name.endswith(GATED)]
        gated = sum(layer.rows for layer in dense) * share + experts.gated_elements(model)
        pair = 2 * max((layer.rows * layer.columns for layer in dense if not layer.name.endswith(JOINED)), default=0)
        widest = max(widest_matrix(model), pair)
    joined_keys = 0.0
    if _ending(model, OF_LATENT):  # the kernels know one size: values are as wide as queries and keys, which are joined
        attended = joined_keys = sum(layer.rows for layer in model.linears if QUERIES.search(layer.name)) * share
    projected = max(attended, outputs - 2 * model.hidden - 2 * inner)
    token_input = sum(layer.rows for layer in _ending(model, TOKEN_INPUT)) * share
    if token_input:
        gated = sum(layer.rows for layer in model.linears if layer.name.endswith(GATED)) * share
    if model.experts or token_input or joined_keys:
        projected = sum(layer.rows for layer in model.linears if PROJECTIONS.search(layer.name)) * share or projected
    return Widths(
        layers=model.layers,
        hidden=model.hidden,
        attended=attended,
        values=values,
        projected=projected,
        normed=model.normed_heads * share + joined_keys,
        inner=inner,
        outputs=outputs,
        capped_heads=model.capped_heads,
        ranks=sum(layer.own_rank or rank for layer in model.linears if layer.name in targets) * share
        + experts.rank_elements(model, rank=rank),
        adapted_inputs=sum(layer.columns for layer in model.linears if layer.name in targets) * share,
        weights=model.reached_parameters * share,
        active_weights=model.active_parameters * share,
        experts=experts.experts_a_layer(model),
        pairs=experts.pairs_a_token(model),
        gated=gated,
        router_bytes=experts.fast_router_bytes_per_token(model),
        widest=int(max(widest, model.hidden * projected)),
        vocabulary=model.vocabulary,
        has_out_norms=bool(family and family.has_out_norms),
        token_input=token_input,
        gated_by_layer=_gated_by_layer(model) if token_input else (),
        recurrent_launches=recurrent.launches * recurrent.layers * share,
        recurrent_bytes=recurrent.traffic_bytes / COUNTED_TOKENS * recurrent.layers * share,
    )


def widest_attention(model: ModelFacts, mean: Widths) -> Widths:
    """Those of the layer whose heads are widest, where these differ from layer to layer (Gemma 4)."""
    outputs = _ending(model, "o_proj")
    if len({layer.columns for layer in outputs}) < 2:
        return mean
    widest = max(outputs, key=lambda layer: layer.columns)
    attention = widest.name.removesuffix("o_proj")
    projected = sum(each.rows for each in model.linears if each.name.startswith(attention)) - widest.rows
    normed = mean.normed * projected / mean.projected
    return replace(mean, attended=widest.columns, projected=projected, normed=normed)


def _gated_by_layer(model: ModelFacts) -> tuple[float, ...]:
    gated = [0.0] * model.layers
    for layer in model.linears:
        if layer.name.endswith(GATED) and (number := LAYER.search(layer.name)):
            gated[int(number[1])] += layer.rows
    return tuple(gated)


def _ending(model: ModelFacts, name: str) -> list[LinearShape]:
    return [layer for layer in model.linears if layer.name.endswith(f".{name}")]
