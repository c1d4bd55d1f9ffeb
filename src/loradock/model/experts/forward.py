"""What a layer's experts compute: pairs of token and expert sorted by expert, one product for each expert that is used.

An expert's matrix is dequantised for its product and again for the product's gradient, so that of all experts one
matrix at a time is dense. Routing, gate and order of sums are those of transformers' `grouped_mm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from loradock.model.experts import layout
from loradock.model.experts.storage import NF4Experts

NAME = "loradock"
"""Of this forward among transformers' implementations of experts."""
FACTORS = "lora_factors"


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
        ctx: Any, inputs: torch.Tensor, weights: torch.Tensor, expert: int, is_transposed: bool
    ) -> torch.Tensor:
        """[tokens, rows]; `is_transposed`: the matrix lies as [columns, rows]."""
        ctx.weights, ctx.expert, ctx.is_transposed = weights, expert, is_transposed
        matrix = matrix_of(weights, expert, inputs.dtype)
        return inputs @ (matrix if is_transposed else matrix.t())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Of the inputs alone."""
        (gradient,) = gradients
        matrix = matrix_of(ctx.weights, ctx.expert, gradient.dtype)
        return gradient @ (matrix.t() if ctx.is_transposed else matrix), None, None, None


def matrix_of(weights: torch.Tensor, expert: int, dtype: torch.dtype) -> torch.Tensor:
    """One expert's matrix: of NF4 in the dtype of the products, else in this one."""
    return weights.expert(expert) if isinstance(weights, NF4Experts) else weights[expert].to(dtype)


def product(module: Any, key: str, inputs: torch.Tensor, expert: int) -> torch.Tensor:
    """One expert's matrix times its tokens [tokens, columns]: with its bias, and with LoRA where the layer has it."""
    weights, lies = getattr(module, key), layout.of(module)
    is_cast = inputs.dtype != weights.dtype and not torch.is_autocast_enabled(inputs.device.type)
    if isinstance(weights, NF4Experts) or is_cast:
        outputs: Any = _Product.apply(inputs, weights, expert, lies.is_transposed)
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
    count, chosen = top_k_index.shape
    experts = top_k_index.reshape(-1)
    order = experts.argsort(stable=True)
    tokens_of = torch.bincount(experts, minlength=module.num_experts).tolist()
    lies = layout.of(module)
    into, out_of = lies.keys
    parts: list[torch.Tensor] = []
    for expert, pairs in enumerate(order.split(tokens_of)):
        if not len(pairs):
            continue
        inputs = hidden_states[pairs // chosen]
        if lies.scales_inputs:
            inputs = inputs * top_k_weights.reshape(-1)[pairs].unsqueeze(-1)
        inner = product(module, into, inputs, expert)
        inner = module._apply_gate(inner) if lies.has_gate else module.act_fn(inner)
        parts.append(product(module, out_of, inner, expert))
    outputs = torch.cat(parts)
    if module.has_post_expert_norm:
        outputs = module.post_expert_norm(outputs)
    weighted = outputs if lies.scales_inputs else outputs * top_k_weights.reshape(-1)[order].unsqueeze(-1)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return weighted[place].view(count, chosen, -1).sum(dim=1).to(hidden_states.dtype)


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
