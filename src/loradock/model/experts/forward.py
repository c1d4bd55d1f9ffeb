"""What a layer's experts compute: pairs of token and expert sorted by expert, one product for each expert that is used.

An expert's matrix is dequantised for its product and again for the product's gradient, so that of all experts one
matrix at a time is dense. Routing, gate and order of sums are those of transformers' `grouped_mm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from loradock.model.experts import column, layout
from loradock.model.experts.storage import NF4Experts

Again = Callable[[], torch.Tensor]
NAME = "loradock"
"""Of this forward among transformers' implementations of experts."""
FACTORS = "lora_factors"
TOKENS_AT_ONCE = 1024
"""So many are added up at a time, in the dtype of the router's weights, which may be wider than all else."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """LoRA on one matrix of every expert: `a` and `b` hold an expert's [rank, inputs] and [outputs, rank]."""

    a: tuple[torch.Tensor, ...]
    b: tuple[torch.Tensor, ...]
    scaling: float


class _Product(torch.autograd.Function):
    """Inputs [tokens, columns] times the transpose of a frozen expert's matrix, which is not kept for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weights: torch.Tensor, expert: int, is_transposed: bool, again: Again | None
    ) -> torch.Tensor:
        """[tokens, rows]; `is_transposed`: the matrix lies as [columns, rows]; `again`: the weights in the backward."""
        ctx.again, ctx.expert, ctx.is_transposed = again or (lambda: weights), expert, is_transposed
        matrix = matrix_of(weights, expert, inputs.dtype)
        return inputs @ (matrix if is_transposed else matrix.t())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Of the inputs alone."""
        (gradient,) = gradients
        matrix = matrix_of(ctx.again(), ctx.expert, gradient.dtype)
        return gradient @ (matrix.t() if ctx.is_transposed else matrix), None, None, None, None


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """P pairs of a token and one of its `active` experts, sorted by expert: `order` int64 [P] says which stands where.

    `places`: the other way round.
    """

    active: int
    order: torch.Tensor
    places: torch.Tensor

    def spread(self, rows: torch.Tensor) -> torch.Tensor:
        """[tokens, n] -> [P, n]: each token's row for each of its experts."""
        return rows.index_select(0, self.order // self.active)

    def summed(self, rows: torch.Tensor) -> torch.Tensor:
        """[P, n] -> [tokens, n]: in the order of a token's experts."""
        return rows.index_select(0, self.places).view(-1, self.active, rows.shape[1]).sum(dim=1)


class _Spread(torch.autograd.Function):
    """`Pairs.spread`, with `Pairs.summed` as its gradient: torch's own zeroes all tokens for each expert."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        """[P, n]."""
        ctx.active = pairs.active
        ctx.save_for_backward(pairs.order, pairs.places)
        return pairs.spread(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Of the rows alone."""
        order, places = ctx.saved_tensors
        return Pairs(active=ctx.active, order=order, places=places).summed(gradients[0]), None


class _Summed(torch.autograd.Function):
    """`Pairs.summed` of outputs times weights [P, 1], in the wider dtype of both, a part of the tokens at a time."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, weights: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        """[tokens, n] in the dtype of the outputs."""
        ctx.active = pairs.active
        ctx.save_for_backward(outputs, weights, pairs.order)
        parts = pairs.places.view(-1, pairs.active).split(TOKENS_AT_ONCE)
        return torch.cat(
            [
                (outputs[places] * weights[places]).sum(dim=1).to(outputs.dtype)  # [tokens, active, n]
                for places in parts
            ]
        )

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Of outputs and weights."""
        outputs, weights, order = ctx.saved_tensors
        of_outputs, of_weights = torch.empty_like(outputs), torch.empty_like(weights)
        tokens = order // ctx.active
        for start in range(0, len(outputs), TOKENS_AT_ONCE):
            part = slice(start, start + TOKENS_AT_ONCE)
            rows = gradients[0].index_select(0, tokens[part]).to(torch.promote_types(outputs.dtype, weights.dtype))
            of_outputs[part] = rows * weights[part]
            of_weights[part] = rows.mul_(outputs[part]).sum(dim=1, keepdim=True)
        return of_outputs, of_weights, None


def matrix_of(weights: torch.Tensor, expert: int, dtype: torch.dtype) -> torch.Tensor:
    """One expert's matrix: of NF4 in the dtype of the products, else in this one."""
    return weights.expert(expert) if isinstance(weights, NF4Experts) else weights[expert].to(dtype)


def product(module: Any, key: str, inputs: torch.Tensor, expert: int, *, weights: torch.Tensor) -> torch.Tensor:
    """One expert's matrix times its tokens [tokens, columns]: with its bias, and with LoRA where the layer has it.

    `weights`: of all experts, the module's parameter of this name.
    """
    lies = layout.of(module)
    is_cast = inputs.dtype != weights.dtype and not torch.is_autocast_enabled(inputs.device.type)
    if isinstance(weights, NF4Experts) or is_cast or not weights.requires_grad:
        again = partial(column.weights_of, module, key) if column.comes_again(module, key) else None
        outputs: Any = _Product.apply(inputs, weights, expert, lies.is_transposed, again)
    else:
        outputs = inputs @ (weights[expert] if lies.is_transposed else weights[expert].t())
    if lies.has_bias:
        outputs = outputs + getattr(module, f"{key}_bias")[expert]
    factors: Factors | None = getattr(module, FACTORS, {}).get(key)
    if factors is None:
        return outputs
    a, b = factors.a[expert], factors.b[expert]
    values = inputs if torch.is_autocast_enabled(inputs.device.type) else inputs.to(a.dtype)
    added = (values @ a.t()) @ b.t() * factors.scaling
    return (outputs + added).to(outputs.dtype)


@torch.compiler.disable  # how many tokens an expert has is new in each pass, and would be compiled anew
def experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The sum over each token's experts [tokens, hidden]; indices and weights [tokens, k] are those of the router."""
    chosen = top_k_index.shape[1]
    experts = top_k_index.reshape(-1)
    order = experts.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    pairs = Pairs(active=chosen, order=order, places=places)
    tokens_of = torch.bincount(experts, minlength=module.num_experts).tolist()
    lies = layout.of(module)
    into, out_of = lies.keys
    into_weights, out_weights = (column.weights_of(module, key) for key in lies.keys)
    weights = top_k_weights.reshape(-1, 1).index_select(0, order)
    spread: Any = _Spread.apply(hidden_states, pairs)
    if lies.scales_inputs:
        spread, weights = spread * weights, torch.ones_like(weights)
    parts: list[torch.Tensor] = []
    for expert, inputs in enumerate(spread.split(tokens_of)):
        if not len(inputs):
            continue
        inner = product(module, into, inputs, expert, weights=into_weights)
        inner = module._apply_gate(inner) if lies.has_gate else module.act_fn(inner)
        parts.append(product(module, out_of, inner, expert, weights=out_weights))
    outputs = torch.cat(parts)
    if module.has_post_expert_norm:
        outputs = module.post_expert_norm(outputs)
    summed: Any = _Summed.apply(outputs, weights, pairs)
    return summed.to(hidden_states.dtype)


def install(model: Any) -> int:
    """Have the model's experts computed here; returns how many layers have them."""
    layers = [module for _, module in layout.modules(model)]
    for module in layers:
        put_into(module)
    return len(layers)


def put_into(module: Any) -> None:
    """Have the experts of every module that shares this one's configuration computed here."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    module.config._experts_implementation_internal = NAME


def is_installed(module: Any) -> bool:
    """Whether a module's experts are computed here."""
    config = getattr(module, "config", None)  # Llama 4's own class of experts has none
    return layout.is_served(module) and config is not None and config._experts_implementation == NAME


@contextmanager
def adapted(module: Any, key: str, factors: Factors) -> Iterator[None]:
    """Inside, one matrix of the layer's experts has LoRA on it."""
    before: dict[str, Factors] = getattr(module, FACTORS, {})
    object.__setattr__(module, FACTORS, {**before, key: factors})
    try:
        yield
    finally:
        object.__setattr__(module, FACTORS, before)
