"""A gated MLP beside a mixture of experts, over the same states (Gemma 4):

y = out_norm(MLP(norm(x))) + experts_out_norm(experts(experts_norm(x))), routed by router_norm(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import BesideParts, Norm
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup
from loradock.training.backends.fast.mlp import dense, mixture
from loradock.training.backends.fast.mlp.base import Frozen


@dataclass(frozen=True, kw_only=True, eq=False)
class BesideKept:
    """What backward needs of both, and their outputs [T, hidden] before the norms."""

    of_dense: dense.DenseKept
    of_experts: mixture.MixtureKept
    dense_output: torch.Tensor
    experts_output: torch.Tensor


class Beside:
    """See `base.Mlp`; what it reads is not normed."""

    def __init__(
        self, parts: BesideParts, dense_mlp: dense.Dense, experts: mixture.Mixture, *, kernels: Kernels
    ) -> None:
        self.parts, self.dense, self.experts, self.kernels = parts, dense_mlp, experts, kernels

    def first(self, normed: torch.Tensor, batch: Tokens) -> tuple[Any, Any]:
        """See `base.Mlp`."""
        of_dense = self.dense.first(self._norm(normed, self.parts.norm)[0], batch)
        routed = self.experts.router.forward(self._norm(normed, self.parts.router_norm)[0])
        return of_dense, self.experts.first_routed(routed, self._norm(normed, self.parts.experts_norm)[0], batch)

    def second(
        self, halfway: tuple[Any, Any], batch: Tokens, *, is_again: bool = False
    ) -> tuple[torch.Tensor, BesideKept]:
        """See `base.Mlp`."""
        dense_output, of_dense = self.dense.second(halfway[0], batch)
        experts_output, of_experts = self.experts.second(halfway[1], batch, is_again=is_again)
        y = self._norm(dense_output, self.parts.out_norm)[0]
        y.add_(self._norm(experts_output, self.parts.experts_out_norm)[0])
        return y, BesideKept(
            of_dense=of_dense, of_experts=of_experts, dense_output=dense_output, experts_output=experts_output
        )

    def recomputed(self, halfway: tuple[Any, Any], batch: Tokens) -> BesideKept:
        """See `base.Mlp`. The outputs' norms read the last products."""
        return self.second(halfway, batch, is_again=True)[1]

    def backward(
        self, dy: torch.Tensor, saved: BesideKept, normed: Callable[[], torch.Tensor], batch: Tokens
    ) -> torch.Tensor:
        """See `base.Mlp`."""
        parts, x = self.parts, normed()
        ddense = self._norm_backward(dy, saved.dense_output, parts.out_norm)
        ddense = self.dense.backward(ddense, saved.of_dense, lambda: self._norm(x, parts.norm)[0], batch)
        dx = self._norm_backward(ddense, x, parts.norm)
        dexperts = self._norm_backward(dy, saved.experts_output, parts.experts_out_norm)
        dexperts, dweights = self.experts.backward_routed(
            dexperts, saved.of_experts, lambda: self._norm(x, parts.experts_norm)[0], batch
        )
        dx.add_(self._norm_backward(dexperts, x, parts.experts_norm))
        drouter = self.experts.router.backward_(torch.zeros_like(x), dweights, saved.of_experts.routed)
        return dx.add_(self._norm_backward(drouter, x, parts.router_norm))

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mlp`."""
        return self.dense.linears()

    def frozen(self) -> tuple[Frozen, ...]:
        """See `base.Mlp`."""
        return *self.experts.frozen(), *self.linears()

    def _norm(self, x: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kernels.rms_norm(x, norm.weight, norm.epsilon, offset=norm.offset)

    def _norm_backward(self, dy: torch.Tensor, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        _, rstd = self._norm(x, norm)
        return self.kernels.rms_norm_backward(dy, x, rstd, norm.weight, offset=norm.offset)
