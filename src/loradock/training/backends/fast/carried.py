"""What a pass carries from layer to layer beside the hidden states: keys and values that later layers read, and what
each layer reads of the tokens themselves (Gemma 4's small models)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.families.parts import TokenInputParts
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup
from loradock.training.backends.fast.weights import DenseRoom

KeysValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(kw_only=True, eq=False)
class Carried:
    """`keys_values` [T, K, D] each, by the name that layers know them by, `gradients` to them so far. `inputs`
    [T, layers, size]: what each layer reads, which its backward turns into the gradient to it."""

    keys_values: dict[str, KeysValues] = field(default_factory=dict[str, KeysValues])
    gradients: dict[str, KeysValues] = field(default_factory=dict[str, KeysValues])
    inputs: torch.Tensor | None = None
    unnormed: torch.Tensor | None = None
    h: torch.Tensor | None = None

    def inputs_of(self, layer: int) -> torch.Tensor:
        """What a layer reads, [T, size]: a view."""
        if self.inputs is None:
            raise ValueError("a model without inputs of its layers")
        return self.inputs[:, layer]

    def add(self, name: str, dk: torch.Tensor, dv: torch.Tensor) -> KeysValues:
        """All gradients to these keys and values so far, the given ones among them, whose storage may be taken."""
        if name in self.gradients:
            before_k, before_v = self.gradients[name]
            dk, dv = dk.add_(before_k), dv.add_(before_v)
        self.gradients[name] = dk, dv
        return dk, dv


class TokenInputs:
    """Makes what each layer reads of a token, of its embedding x [T, hidden] and of a table of its own."""

    def __init__(
        self, parts: TokenInputParts, adapters: FlatAdapters, room: DenseRoom, *, kernels: Kernels, first: int
    ) -> None:
        """`first`: see `LinearGroup`."""
        self.parts, self.kernels = parts, kernels
        self.projection = LinearGroup((parts.projection,), adapters, room, kernels=kernels, first=first)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, *, keys: torch.Tensor) -> Carried:
        """The start of a pass over tokens `ids` [T] with embeddings x [T, hidden]."""
        parts, norm = self.parts, self.parts.norm
        projected, h = self.projection.forward(x, keys=keys)
        unnormed = projected.mul_(parts.projection_scale).view(-1, norm.weight.shape[0])
        inputs, _ = self.kernels.rms_norm(unnormed, norm.weight, norm.epsilon, offset=norm.offset)
        looked_up = torch.nn.functional.embedding(ids, parts.table).to(x.dtype).mul_(parts.table_scale)
        inputs = inputs.view(looked_up.shape).add_(looked_up).mul_(parts.scale)
        inputs = inputs.view(ids.numel(), -1, norm.weight.shape[0])
        return Carried(inputs=inputs, unnormed=None if h is None else unnormed, h=h)

    def backward(self, carried: Carried, x: Callable[[], torch.Tensor], *, keys: torch.Tensor) -> None:
        """The projection's adapter's gradients; after this the pass is over."""
        norm, dinputs, unnormed = self.parts.norm, carried.inputs, carried.unnormed
        if dinputs is None or unnormed is None:
            return
        dnormed = dinputs.view_as(unnormed).mul_(self.parts.scale)
        _, rstd = self.kernels.rms_norm(unnormed, norm.weight, norm.epsilon, offset=norm.offset)
        dprojected = self.kernels.rms_norm_backward(dnormed, unnormed, rstd, norm.weight, offset=norm.offset)
        dprojected = dprojected.mul_(self.parts.projection_scale).view(dinputs.shape[0], -1)
        self.projection.backward_a(self.projection.backward_b(dprojected, carried.h), x(), keys=keys)
