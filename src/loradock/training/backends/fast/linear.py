"""Frozen linear layers that read the same input, with their LoRA adapters: forward and backward written out.

For layer i with frozen weight W_i [out_i, in], A_i [r, in], B_i [out_i, r] and scale s (LoRA, Hu et al. 2021):

    h_i = x A_i^T                          all A_i at once, stacked
    y_i = x W_i^T + bias_i + s h_i B_i^T   all W_i at once, stacked; the y_i lie side by side

    dB_i = s dy_i^T h_i,   dh_i = s dy_i B_i,   dA_i = dh_i^T x,   dx = dy W + dh A, both stacked

With dropout each adapter reads x under a mask of its own (as PEFT has it), which follows from the keys of the tokens
and is made again in backward rather than kept: `kernels.base.Dropout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import linear

from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.families.parts import Unfit
from loradock.training.backends.fast.kernels import Dropout, Kernels
from loradock.training.backends.fast.weights import DenseRoom, FrozenWeight

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
class Adapter:
    """The upper half of one layer's adapter: B [out, r], and its columns of the joined y and of the joined h."""

    parameter: torch.nn.Parameter
    b: torch.Tensor
    b_transposed: torch.Tensor
    fresh_b: torch.Tensor
    outputs: slice
    ranks: slice
    scale: float


class LinearGroup:
    """Layers with a common input. `a` and `fresh_a` are [sum of r, in]; None where no layer has an adapter.

    `first`: the number of its first adapter in the model. Raises Unfit for dropout before adapters of several ranks.
    """

    def __init__(
        self, modules: Sequence[Any], adapters: FlatAdapters, room: DenseRoom, *, kernels: Kernels, first: int
    ) -> None:
        bases = [base_of(module) for module in modules]
        self.weight = FrozenWeight(bases, room)
        self.bias = joined_bias(bases)
        adapted = [module for module in modules if is_adapted(module)]
        self.kernels, self.first = kernels, first
        self.dropout = max((drop_share(module) for module in adapted), default=0.0)
        self.stack = [module.lora_A[ADAPTER].weight for module in adapted]
        self.rank = max((a.shape[0] for a in self.stack), default=0)
        if self.dropout and any(a.shape[0] != self.rank for a in self.stack):
            raise Unfit("adapters that read one input have several ranks, and a dropout")
        self.a, self.fresh_a = self._stacked(adapters)
        self.adapters: list[Adapter] = []
        output = rank = 0
        for module, base in zip(modules, bases, strict=True):
            if is_adapted(module):
                b = module.lora_B[ADAPTER].weight
                self.adapters.append(
                    Adapter(
                        parameter=b,
                        **views_of(b, adapters),
                        outputs=slice(output, output + base.out_features),
                        ranks=slice(rank, rank + b.shape[1]),
                        scale=float(module.scaling[ADAPTER]),
                    )
                )
                rank += b.shape[1]
            output += base.out_features

    def keep(self, dtype: torch.dtype | None) -> None:
        """Keep the frozen matrix dense in this dtype from now on, or not at all."""
        self.weight.keep(dtype)

    def bind(self, adapters: FlatAdapters) -> None:
        """From now on use the adapters' buffers as they are now, of another dtype than before."""
        self.a, self.fresh_a = self._stacked(adapters)
        self.adapters = [replace(adapter, **views_of(adapter.parameter, adapters)) for adapter in self.adapters]

    def forward(self, x: torch.Tensor, *, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x [T, in] -> y [T, sum of out], and h [T, sum of r] for backward. `keys`: see `Tokens`."""
        h = self.down(x, keys=keys)
        y = linear(x, self.weight.dense(x.dtype), self.bias if self.bias is None else self.bias.to(x.dtype))
        if h is not None:
            for each in self.adapters:
                y[:, each.outputs].addmm_(h[:, each.ranks], each.b_transposed, alpha=each.scale)
        return y, h

    def backward_b(self, dy: torch.Tensor, h: torch.Tensor | None) -> torch.Tensor | None:
        """The gradients of B from that of the output, [T, sum of out]; returns dh [T, sum of r]."""
        if h is None:
            return None
        dh = torch.empty_like(h)
        for each in self.adapters:
            part = dy[:, each.outputs]
            each.fresh_b.addmm_(part.t(), h[:, each.ranks], beta=0, alpha=each.scale)
            dh[:, each.ranks].addmm_(part, each.b, beta=0, alpha=each.scale)
        return dh

    def backward_input(self, dy: torch.Tensor, dh: torch.Tensor | None, *, keys: torch.Tensor) -> torch.Tensor:
        """dx [T, in], of all layers together."""
        dx = torch.mm(dy, self.weight.dense(dy.dtype))
        if dh is None or self.a is None:
            return dx
        if dropout := self._dropout(keys):
            self.kernels.lora_down_backward_x_(dx, dh, self.a, dropout, rank=self.rank)
            return dx
        return dx.addmm_(dh, self.a)

    def backward_a(self, dh: torch.Tensor | None, x: torch.Tensor, *, keys: torch.Tensor) -> None:
        """The gradients of A from dh [T, sum of r] and the layers' input x [T, in]."""
        if dh is None or self.fresh_a is None:
            return
        if dropout := self._dropout(keys):
            self.kernels.lora_down_backward_a(dh, x, dropout, rank=self.rank, out=self.fresh_a)
        else:
            torch.mm(dh.t(), x, out=self.fresh_a)

    def down(self, x: torch.Tensor, *, keys: torch.Tensor) -> torch.Tensor | None:
        """h alone, [T, sum of r]; None where no layer has an adapter."""
        if self.a is None:
            return None
        if dropout := self._dropout(keys):
            return self.kernels.lora_down(x, self.a, dropout, rank=self.rank)
        return linear(x, self.a)

    def _dropout(self, keys: torch.Tensor) -> Dropout | None:
        """The masks of this group; None where nothing is dropped."""
        return Dropout(keys, self.first, self.dropout) if self.dropout and keys.numel() else None

    def _stacked(self, adapters: FlatAdapters) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """All A and their fresh gradients."""
        if not self.stack:
            return None, None
        shape = (sum(a.shape[0] for a in self.stack), self.stack[0].shape[1])
        working, fresh = (adapters.view(flat, self.stack, shape) for flat in (adapters.working, adapters.fresh))
        return working, fresh


def views_of(b: torch.nn.Parameter, adapters: FlatAdapters) -> dict[str, torch.Tensor]:
    """Where an adapter reads B and writes its gradient."""
    working = adapters.view(adapters.working, [b], b.shape)
    return {"b": working, "b_transposed": working.t(), "fresh_b": adapters.view(adapters.fresh, [b], b.shape)}


def joined_bias(bases: Sequence[Any]) -> torch.Tensor | None:
    """The layers' biases one after the other, zero where one has none; None where none has one."""
    if all(base.bias is None for base in bases):
        return None
    like = next(base.bias for base in bases if base.bias is not None)
    return torch.cat(
        [base.bias.detach() if base.bias is not None else like.new_zeros(base.out_features) for base in bases]
    )


def drop_share(module: Any) -> float:
    """The dropout probability before A."""
    return float(getattr(module.lora_dropout[ADAPTER], "p", 0.0))
