"""Frozen linear layers that read the same input, with their LoRA adapters: forward and backward written out.

For layer i with frozen weight W_i [out_i, in], A_i [r, in], B_i [out_i, r] and scale s (LoRA, Hu et al. 2021):

    h_i = x A_i^T                          all A_i at once, stacked
    y_i = x W_i^T + bias_i + s h_i B_i^T

    dB_i = s dy_i^T h_i,   dh_i = s dy_i B_i,   dA_i = dh_i^T x,   dx = sum of dy_i W_i + dh_i A_i

With dropout each adapter reads x under a mask of its own (as PEFT has it), which follows from a seed and is drawn again
in backward rather than kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import linear

from loradock.engine.fast.adapters import FlatAdapters
from loradock.engine.fast.weights import FrozenWeight

ADAPTER = "default"


def base_of(module: Any) -> Any:
    """The frozen layer inside a PEFT layer, or the module itself where it has no adapter."""
    return module.base_layer if hasattr(module, "base_layer") else module


def is_adapted(module: Any) -> bool:
    """True for a layer with a LoRA adapter."""
    return hasattr(module, "lora_A") and ADAPTER in module.lora_A


def adapter_parameters(modules: Sequence[Any]) -> list[torch.nn.Parameter]:
    """Their trainable weights in the order that stacks the A matrices: all A, then all B."""
    adapted = [module for module in modules if is_adapted(module)]
    return [
        *(module.lora_A[ADAPTER].weight for module in adapted),
        *(module.lora_B[ADAPTER].weight for module in adapted),
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """One frozen layer. `b`, `fresh_b` [out, r]: None without adapter; `columns`: its part of the stacked h.

    `b_transposed` [r, out] is b seen the other way round, made once: a view costs the host as much as a small kernel.
    """

    weight: FrozenWeight
    bias: torch.Tensor | None
    b: torch.Tensor | None = None
    b_transposed: torch.Tensor | None = None
    fresh_b: torch.Tensor | None = None
    columns: slice = field(default_factory=lambda: slice(0, 0))
    scale: float = 0.0


class LinearGroup:
    """Layers with a common input. `a` and `fresh_a` are [sum of r, in]; None where no layer has an adapter."""

    def __init__(self, modules: Sequence[Any], adapters: FlatAdapters, *, dtype: torch.dtype) -> None:
        adapted = [module for module in modules if is_adapted(module)]
        self.dropout = max((drop_share(module) for module in adapted), default=0.0)
        self.a = self.fresh_a = None
        if adapted:
            stack = [module.lora_A[ADAPTER].weight for module in adapted]
            shape = (sum(a.shape[0] for a in stack), stack[0].shape[1])
            self.a = adapters.view(adapters.working, stack, shape)
            self.fresh_a = adapters.view(adapters.fresh, stack, shape)
        self.projections: list[Projection] = []
        column = 0
        for module in modules:
            base = base_of(module)
            common: dict[str, Any] = {
                "weight": FrozenWeight(base, dtype=dtype),
                "bias": base.bias.detach().to(dtype) if base.bias is not None else None,
            }
            if is_adapted(module):
                b = module.lora_B[ADAPTER].weight
                working = adapters.view(adapters.working, [b], b.shape)
                common |= {
                    "b": working,
                    "b_transposed": working.t(),
                    "fresh_b": adapters.view(adapters.fresh, [b], b.shape),
                    "columns": slice(column, column + b.shape[1]),
                    "scale": float(module.scaling[ADAPTER]),
                }
                column += b.shape[1]
            self.projections.append(Projection(**common))
        self.widths = [each.weight.shape[0] for each in self.projections]
        self.ranks = [each.b.shape[1] for each in self.projections if each.b is not None]

    def forward(self, x: torch.Tensor, *, seed: int | None) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """x [T, in] -> each layer's [T, out_i], and h [T, sum of r] for backward. `seed`: None without dropout."""
        h = self.down(x, seed=seed)
        outputs = [linear(x, each.weight.dense(), each.bias) for each in self.projections]
        self._add_adapters(outputs, h)
        return outputs, h

    def forward_joined(self, x: torch.Tensor, *, seed: int | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same with the outputs side by side: [T, sum of out_i]."""
        if len(self.projections) == 1:
            (joined,), h = self.forward(x, seed=seed)
            return joined, h
        h = self.down(x, seed=seed)
        joined = x.new_empty(x.shape[0], sum(self.widths))
        outputs = joined.split(self.widths, dim=1)
        for each, y in zip(self.projections, outputs, strict=True):
            weight = each.weight.dense().t()
            if each.bias is None:
                torch.mm(x, weight, out=y)
            else:
                torch.addmm(each.bias, x, weight, out=y)
        self._add_adapters(outputs, h)
        return joined, h

    def backward_b(self, gradients: Sequence[torch.Tensor], h: torch.Tensor | None) -> torch.Tensor | None:
        """The gradients of B from those of the outputs, [T, out_i] each; returns dh [T, sum of r]."""
        if h is None:
            return None
        dh = torch.empty_like(h)
        parts = zip(self._by_adapter(h), self._by_adapter(dh), strict=True)
        for each, dy in zip(self.projections, gradients, strict=True):
            if each.b is not None and each.fresh_b is not None:
                h_part, dh_part = next(parts)
                each.fresh_b.addmm_(dy.t(), h_part, beta=0, alpha=each.scale)
                dh_part.addmm_(dy, each.b, beta=0, alpha=each.scale)
        return dh

    def backward_input(
        self, gradients: Sequence[torch.Tensor], dh: torch.Tensor | None, *, seed: int | None
    ) -> torch.Tensor:
        """dx [T, in], of all layers together."""
        first, *others = zip(self.projections, gradients, strict=True)
        dx = torch.mm(first[1], first[0].weight.dense())
        for each, dy in others:
            dx.addmm_(dy, each.weight.dense())
        if dh is not None:
            self._add_input_gradient(dx, dh, seed)
        return dx

    def backward_a(self, dh: torch.Tensor | None, x: torch.Tensor, *, seed: int | None) -> None:
        """The gradients of A from dh [T, sum of r] and the layers' input x [T, in]."""
        if dh is None or self.fresh_a is None:
            return
        if seed is None:
            torch.mm(dh.t(), x, out=self.fresh_a)
            return
        for index, columns in enumerate(self._columns()):
            torch.mm(dh[:, columns].t(), self._dropped(x, seed, index), out=self.fresh_a[columns])

    def down(self, x: torch.Tensor, *, seed: int | None) -> torch.Tensor | None:
        """h alone, [T, sum of r]; None where no layer has an adapter."""
        if self.a is None:
            return None
        if seed is None:
            return linear(x, self.a)
        parts = [linear(self._dropped(x, seed, i), self.a[c]) for i, c in enumerate(self._columns())]
        return torch.cat(parts, dim=1)

    def _add_adapters(self, outputs: Sequence[torch.Tensor], h: torch.Tensor | None) -> None:
        """Add s h_i B_i^T to each layer's output."""
        if h is None:
            return
        parts = iter(self._by_adapter(h))
        for each, y in zip(self.projections, outputs, strict=True):
            if each.b_transposed is not None:
                y.addmm_(next(parts), each.b_transposed, alpha=each.scale)

    def _by_adapter(self, h: torch.Tensor) -> Sequence[torch.Tensor]:
        """The columns of h (or dh) of each adapter."""
        return h.split(self.ranks, dim=1) if len(self.ranks) > 1 else (h,)

    def _columns(self) -> list[slice]:
        return [each.columns for each in self.projections if each.b is not None]

    def _add_input_gradient(self, dx: torch.Tensor, dh: torch.Tensor, seed: int | None) -> None:
        a = self.a
        if a is None:
            return
        if seed is None:
            dx.addmm_(dh, a)
            return
        for index, columns in enumerate(self._columns()):
            part = torch.mm(dh[:, columns], a[columns])
            dx.add_(part.mul_(self._mask(part, seed, index)), alpha=1 / (1 - self.dropout))

    def _dropped(self, x: torch.Tensor, seed: int, index: int) -> torch.Tensor:
        return (x * self._mask(x, seed, index)).mul_(1 / (1 - self.dropout))

    def _mask(self, like: torch.Tensor, seed: int, index: int) -> torch.Tensor:
        """0 or 1, of the shape of `like`; the same for the same seed and index."""
        generator = torch.Generator(like.device).manual_seed(seed + index)
        return torch.empty_like(like).bernoulli_(1 - self.dropout, generator=generator)


def drop_share(module: Any) -> float:
    """The dropout probability before A."""
    return float(getattr(module.lora_dropout[ADAPTER], "p", 0.0))
