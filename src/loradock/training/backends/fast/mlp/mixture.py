"""A mixture of experts: the sum over each token's experts, y_t = sum_k w_tk down(act(gate(x_t)) * up(x_t)) of expert k.

A shared expert's output comes to it: `shared`.

Pairs of token and expert lie sorted by expert, so that each matrix is dense once a pass, for its own tokens. Gate,
weights and sums are of all pairs at once. No token is dropped, and an expert without one is not computed. The gradient
of w_tk is dy_t times the expert's output, which is not kept: it equals that of act * up, unweighted, times act * up.

Llama 4's experts have w_tk x_t for x_t, and outputs that are summed as they are. There the gradient of w_tk is that of
an expert's input times x_t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loradock.model.experts import layout
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import Clamp, MixtureParts, Unfit
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup, is_adapted
from loradock.training.backends.fast.mlp import shared
from loradock.training.backends.fast.mlp.base import Frozen
from loradock.training.backends.fast.mlp.dense import Dense
from loradock.training.backends.fast.mlp.experts import ExpertLinear, Frozen3D, Pairs
from loradock.training.backends.fast.mlp.gates import Clamped, Gate, Halves
from loradock.training.backends.fast.mlp.router import Balance, Routed, Router
from loradock.training.backends.fast.weights import DenseRoom

Halfway = tuple[Routed, Pairs, torch.Tensor, torch.Tensor | None, torch.Tensor, shared.Halfway | None]
"""What the router said, the pairs, gate and up, the adapters' h, what the last product reads; the shared expert's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureKept:
    """What backward needs: gate and up [P, 2I], which it overwrites, the adapters' h, and what the router said."""

    routed: Routed
    pairs: Pairs
    gate_up: torch.Tensor
    h: torch.Tensor | None
    h_down: torch.Tensor | None
    shared: shared.Kept | None


class Mixture:
    """See `base.Mlp`. `index`: of the layer among those with experts. Unfit where its experts are built otherwise.

    `groups`: the linear layers of the shared expert, as `parts` has them.
    """

    def __init__(
        self,
        parts: MixtureParts,
        groups: Sequence[LinearGroup],
        adapters: FlatAdapters,
        room: DenseRoom,
        balance: Balance,
        *,
        kernels: Kernels,
        index: int,
    ) -> None:
        experts, wrappers = unwrapped(parts.experts)
        if reason := unlike(experts, parts.apply_gate):
            raise Unfit(reason)
        self.gate_up, self.down = (
            ExpertLinear(Frozen3D.of(experts, key), wrappers.get(key), adapters, room) for key in layout.GATED
        )
        self.count = experts.num_experts
        self.scales_inputs = layout.of(experts).scales_inputs
        self.router = Router(parts.router, balance, layer=index)
        self.gate: Gate = (
            Clamped(kernels=kernels, alpha=parts.activation.alpha, limit=parts.activation.limit)
            if isinstance(parts.activation, Clamp)
            else Halves(kernels=kernels, activation=parts.activation)
        )
        self.shared: shared.Shared | None = None
        if parts.shared is not None:
            gate_up, down, *gate = groups
            dense = Dense(gate_up, down, activation=parts.shared.activation, kernels=kernels)
            self.shared = shared.Shared(dense, gate[0] if gate else None)

    def first(self, normed: torch.Tensor, batch: Tokens) -> Halfway:
        """See `base.Mlp`."""
        return self.first_routed(self.router.forward(normed), normed, batch)

    def first_routed(self, routed: Routed, normed: torch.Tensor, batch: Tokens) -> Halfway:
        """`first`, where the router read something else."""
        pairs = Pairs.of(routed.experts, count=self.count)
        gate_up, h = self.gate_up.forward(self._inputs(normed, routed, pairs), pairs)
        of_shared = None if self.shared is None else self.shared.first(normed, batch)
        return routed, pairs, gate_up, h, self.gate.forward(gate_up), of_shared

    def second(self, halfway: Halfway, batch: Tokens, *, is_again: bool = False) -> tuple[torch.Tensor, MixtureKept]:
        """See `base.Mlp`. What the router chose is counted once."""
        routed, pairs, gate_up, h, product, of_shared = halfway
        if not is_again:
            self.router.count(routed)
        y, h_down = self.down.forward(product, pairs)
        y = pairs.summed(y if self.scales_inputs else y.mul_(sorted_weights(routed, pairs, y.dtype)))
        kept = None
        if self.shared is not None and of_shared is not None:
            of_all, kept = self.shared.second(of_shared, batch)
            y.add_(of_all)
        return y, MixtureKept(routed=routed, pairs=pairs, gate_up=gate_up, h=h, h_down=h_down, shared=kept)

    def recomputed(self, halfway: Halfway, batch: Tokens) -> MixtureKept:
        """See `base.Mlp`. What the router chose is not counted again."""
        routed, pairs, gate_up, h, product, of_shared = halfway
        h_down = self.down.down(product, pairs)
        kept = None
        if self.shared is not None and of_shared is not None:
            kept = self.shared.recomputed(of_shared, batch)
        return MixtureKept(routed=routed, pairs=pairs, gate_up=gate_up, h=h, h_down=h_down, shared=kept)

    def backward(
        self, dy: torch.Tensor, saved: MixtureKept, normed: Callable[[], torch.Tensor], batch: Tokens
    ) -> torch.Tensor:
        """See `base.Mlp`."""
        dn, dweights = self.backward_routed(dy, saved, normed, batch)
        return self.router.backward_(dn, dweights, saved.routed)

    def backward_routed(
        self, dy: torch.Tensor, saved: MixtureKept, normed: Callable[[], torch.Tensor], batch: Tokens
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients to what the experts read [T, hidden] and to their weights float32 [T, K], for the router."""
        pairs, routed, gate_up = saved.pairs, saved.routed, saved.gate_up
        of_shared = None
        if self.shared is not None and saved.shared is not None:
            of_shared = self.shared.backward(dy, saved.shared, normed, batch)
        weights = sorted_weights(routed, pairs, dy.dtype)
        dweights = self._down_backward(dy, saved, None if self.scales_inputs else weights)
        if saved.h is not None:
            self.gate_up.backward_b(gate_up, saved.h, pairs)
        dh = self.gate_up.backward_h(gate_up, pairs)
        if dh is not None:
            self.gate_up.backward_a(dh, self._inputs(normed(), routed, pairs), pairs)
        dn = self.gate_up.backward_input(gate_up, dh, pairs)
        if self.scales_inputs:
            dweights = normed().index_select(0, pairs.tokens).mul_(dn).sum(dim=1, dtype=torch.float32)
            dn.mul_(weights)
        dn = pairs.summed(dn)
        if of_shared is not None:
            dn.add_(of_shared)
        return dn, dweights.index_select(0, pairs.places).view(routed.weights.shape)

    def _inputs(self, normed: torch.Tensor, routed: Routed, pairs: Pairs) -> torch.Tensor:
        """What goes into the experts, [P, hidden], new."""
        rows = normed.index_select(0, pairs.tokens)
        return rows.mul_(sorted_weights(routed, pairs, rows.dtype)) if self.scales_inputs else rows

    def _down_backward(self, dy: torch.Tensor, saved: MixtureKept, weights: torch.Tensor | None) -> torch.Tensor:
        """From the output's gradient to gate and up's, in their place; that of the outputs' weights [P, 1], float32."""
        pairs, gate_up = saved.pairs, saved.gate_up
        dy = dy.index_select(0, pairs.tokens)
        if saved.h_down is not None:
            self.down.backward_b(dy, saved.h_down if weights is None else saved.h_down * weights, pairs)
        dh = self.down.backward_h(dy, pairs)
        dproduct = self.down.backward_input(dy, dh, pairs)
        along_bias = None if self.down.bias is None else self.down.along_bias(dy, pairs)
        del dy  # before the product, which is wider
        dweights = self.gate.forward(gate_up).mul_(dproduct).sum(dim=1, dtype=torch.float32)
        if along_bias is not None:
            dweights += along_bias
        if weights is not None:
            dproduct.mul_(weights)
        product = self.gate.backward_(dproduct, gate_up)
        if dh is not None:
            self.down.backward_a(dh if weights is None else dh.mul_(weights), product, pairs)
        return dweights

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return () if self.shared is None else self.shared.linears()

    def frozen(self) -> tuple[Frozen, ...]:
        """See `base.Mlp`."""
        return self.gate_up, self.down, *self.linears()


def sorted_weights(routed: Routed, pairs: Pairs, dtype: torch.dtype) -> torch.Tensor:
    """[P, 1]: the weight of each pair."""
    return routed.weights.reshape(-1).index_select(0, pairs.order).to(dtype).unsqueeze(-1)


def unwrapped(experts: Any) -> tuple[Any, dict[str, Any]]:
    """transformers' module of experts, and PEFT's wrappers with an adapter around it by the parameter's name."""
    wrappers: dict[str, Any] = {}
    while hasattr(experts, "base_layer"):
        if is_adapted(experts):
            wrappers[experts.parameter_name] = experts
        experts = experts.base_layer
    return experts, wrappers


def unlike(experts: Any, apply_gate: Any) -> str | None:
    """What the experts have that is not computed here, or None."""
    kinds = {
        "experts that transformers computes in a way of their own": not layout.is_served(experts),
        "a gate of its own": getattr(type(experts), "_apply_gate", None) is not apply_gate,
        "experts without a gate": not getattr(experts, "has_gate", True),
        "a norm after each expert": getattr(experts, "has_post_expert_norm", False),
    }
    found = next((kind for kind, has in kinds.items() if has), None)
    return f"it has {found}" if found else None
