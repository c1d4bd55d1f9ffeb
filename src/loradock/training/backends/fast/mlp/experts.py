"""One frozen matrix of every expert of a layer, with LoRA on it: pairs of token and expert in the order of experts.

For expert e with matrix W_e [out, in], A_e [r, in], B_e [out, r] and scale s, over the rows of its pairs:

    h = x A_e^T,   y = x W_e^T + s h B_e^T
    dh = s dy B_e,   dx = dy W_e + dh A_e,   dB_e = s dy^T h,   dA_e = dh^T x

A bias of each expert comes to y; a matrix may lie as [in, out]. An expert without a token is not computed, and its
adapter's gradient is zero. Of PEFT's tensors A lies as [experts x r, in] and B as [out, r x experts], the expert
running fastest: B is laid out by expert for the time of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding_bag

from loradock.model.experts import layout, peft_layers
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.linear import ADAPTER
from loradock.training.backends.fast.weights import DenseRoom, FrozenExperts


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """P = T x K pairs of a token and one of its K = `active` experts, sorted by expert, and by token within one.

    `tokens` int64 [P]: the token of each. `order` int64 [P]: which of the unsorted pairs stands where, `places` the
    other way round. `spans`: of each expert that is used, its number and its rows.
    """

    active: int
    tokens: torch.Tensor
    order: torch.Tensor
    places: torch.Tensor
    spans: tuple[tuple[int, slice], ...]

    @classmethod
    def of(cls, experts: torch.Tensor, *, count: int) -> Pairs:
        """The pairs of each token's experts, int64 [T, K], of `count`. It waits for the device."""
        flat = experts.reshape(-1)
        order = flat.argsort(stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        spans: list[tuple[int, slice]] = []
        start = 0
        for expert, size in enumerate(torch.bincount(flat, minlength=count).tolist()):
            if size:
                spans.append((expert, slice(start, start + size)))
            start += size
        width = experts.shape[1]
        return cls(active=width, tokens=order // width, order=order, places=places, spans=tuple(spans))

    def summed(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [P, n] -> [T, n]: the sum over each token's pairs.

        On a CPU without a copy of the rows in the order of tokens: a tenth of the time, and in float32 the same bits.
        """
        if not rows.is_cuda:
            return embedding_bag(self.places.view(-1, self.active), rows, mode="sum")
        return rows.index_select(0, self.places).view(-1, self.active, rows.shape[1]).sum(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertAdapters:
    """LoRA on one matrix of every expert: [experts, r, in] and [out, r, experts], as they are read and as gradients.

    Where PEFT reads a transposed matrix across, its A is our B and its B our A.
    """

    a: torch.Tensor
    b: torch.Tensor
    fresh_a: torch.Tensor
    fresh_b: torch.Tensor

    @classmethod
    def of(cls, wrapper: Any, adapters: FlatAdapters) -> ExpertAdapters:
        """Those of PEFT's wrapper, in the buffers as they are now."""
        a, b = wrapper.lora_A[ADAPTER].weight, wrapper.lora_B[ADAPTER].weight
        count = wrapper.num_experts
        shape_a, shape_b = (count, a.shape[0] // count, a.shape[1]), (b.shape[0], b.shape[1] // count, count)
        first = [adapters.view(flat, [a], shape_a) for flat in (adapters.working, adapters.fresh)]
        second = [adapters.view(flat, [b], shape_b) for flat in (adapters.working, adapters.fresh)]
        if peft_layers.is_read_across(wrapper):
            first, second = ([each.permute(2, 1, 0) for each in side] for side in (second, first))
        return cls(a=first[0], b=second[0], fresh_a=first[1], fresh_b=second[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Frozen3D:
    """One matrix of every expert as transformers has it: [experts, out, in], or [experts, in, out] if `is_transposed`.

    `bias` [experts, out] or None.
    """

    weights: torch.Tensor
    is_transposed: bool
    bias: torch.Tensor | None

    @classmethod
    def of(cls, experts: Any, key: str) -> Frozen3D:
        """That of transformers' module of experts by its name."""
        lies = layout.of(experts)
        bias = getattr(experts, f"{key}_bias").detach() if lies.has_bias else None
        return cls(weights=getattr(experts, key), is_transposed=lies.is_transposed, bias=bias)


def expert_parameters(wrapper: Any) -> list[torch.nn.Parameter]:
    """The trainable weights of PEFT's wrapper."""
    return [wrapper.lora_A[ADAPTER].weight, wrapper.lora_B[ADAPTER].weight]


class ExpertLinear:
    """One matrix of every expert over pairs; `wrapper`: PEFT's, or None without an adapter."""

    def __init__(self, frozen: Frozen3D, wrapper: Any, adapters: FlatAdapters, room: DenseRoom) -> None:
        self.weight = FrozenExperts(frozen.weights, room)
        self.bias, self.is_transposed = frozen.bias, frozen.is_transposed
        self.outputs, self.inputs = self.weight.shape[::-1] if frozen.is_transposed else self.weight.shape
        self.wrapper = wrapper
        self.scale = 0.0 if wrapper is None else float(wrapper.scaling[ADAPTER])
        self.bind(adapters)

    def bind(self, adapters: FlatAdapters) -> None:
        """From now on use the adapters' buffers as they are now, of another dtype than before."""
        self.adapters = None if self.wrapper is None else ExpertAdapters.of(self.wrapper, adapters)

    def keep(self, dtype: torch.dtype | None) -> None:
        """Keep all experts' matrices dense in this dtype from now on, or none."""
        self.weight.keep(dtype)

    def forward(self, x: torch.Tensor, pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x [P, in] -> y [P, out], and h [P, r] for backward."""
        y = x.new_empty(len(x), self.outputs)
        for expert, rows in pairs.spans:
            torch.mm(x[rows], self.matrix(expert, x.dtype).t(), out=y[rows])
            if self.bias is not None:
                y[rows] += self.bias[expert]
        h = self.down(x, pairs)
        if self.adapters is not None and h is not None:
            b = self.adapters.b.permute(2, 1, 0).contiguous()  # [experts, r, out]
            for expert, rows in pairs.spans:
                y[rows].addmm_(h[rows], b[expert], alpha=self.scale)
        return y, h

    def matrix(self, expert: int, dtype: torch.dtype) -> torch.Tensor:
        """[out, in] of one expert in this dtype; to be used before the next one of the model is asked for."""
        dense = self.weight.dense(expert, dtype)
        return dense.t() if self.is_transposed else dense

    def along_bias(self, dy: torch.Tensor, pairs: Pairs) -> torch.Tensor:
        """Of each pair dy [P, out] times its expert's bias, float32 [P]; zero without biases."""
        along = torch.zeros(len(dy), dtype=torch.float32, device=dy.device)
        if self.bias is not None:
            for expert, rows in pairs.spans:
                along[rows] = (dy[rows] * self.bias[expert]).sum(dim=1, dtype=torch.float32)
        return along

    def down(self, x: torch.Tensor, pairs: Pairs) -> torch.Tensor | None:
        """h alone, [P, r]; None without an adapter."""
        if self.adapters is None:
            return None
        a = self.adapters.a.contiguous()
        h = x.new_empty(len(x), a.shape[1])
        for expert, rows in pairs.spans:
            torch.mm(x[rows], a[expert].t(), out=h[rows])
        return h

    def backward_h(self, dy: torch.Tensor, pairs: Pairs) -> torch.Tensor | None:
        """dh [P, r] from dy [P, out]; None without an adapter."""
        if self.adapters is None:
            return None
        b = self.adapters.b.permute(2, 0, 1).contiguous()  # [experts, out, r]
        dh = dy.new_empty(len(dy), b.shape[2])
        for expert, rows in pairs.spans:
            dh[rows].addmm_(dy[rows], b[expert], beta=0, alpha=self.scale)
        return dh

    def backward_input(self, dy: torch.Tensor, dh: torch.Tensor | None, pairs: Pairs) -> torch.Tensor:
        """dx [P, in]."""
        dx = dy.new_empty(len(dy), self.inputs)
        a = None if self.adapters is None else self.adapters.a.contiguous()
        for expert, rows in pairs.spans:
            torch.mm(dy[rows], self.matrix(expert, dy.dtype), out=dx[rows])
            if a is not None and dh is not None:
                dx[rows].addmm_(dh[rows], a[expert])
        return dx

    def backward_b(self, dy: torch.Tensor, h: torch.Tensor | None, pairs: Pairs) -> None:
        """The gradients of B from dy [P, out] and h [P, r]."""
        if self.adapters is None or h is None:
            return
        out, rank, experts = self.adapters.b.shape
        gradient = dy.new_zeros(experts, rank, out)
        for expert, rows in pairs.spans:
            gradient[expert].addmm_(h[rows].t(), dy[rows], beta=0, alpha=self.scale)
        self.adapters.fresh_b.copy_(gradient.permute(2, 1, 0))

    def backward_a(self, dh: torch.Tensor | None, x: torch.Tensor, pairs: Pairs) -> None:
        """The gradients of A from dh [P, r] and x [P, in]."""
        if self.adapters is None or dh is None:
            return
        fresh = self.adapters.fresh_a
        gradient = fresh.zero_() if fresh.is_contiguous() else dh.new_zeros(fresh.shape)
        for expert, rows in pairs.spans:
            torch.mm(dh[rows].t(), x[rows], out=gradient[expert])
        if gradient is not fresh:
            fresh.copy_(gradient)
