"""A frozen router: which experts a token goes to, with which weights, and the gradient through these weights.

    p = softmax(x W^T) in float32,   w = the K largest p, divided by their sum where the model does so

The choice itself has no gradient. `Balance` adds the load-balancing loss (Fedus et al. 2021, equations 4 to 6), one sum
over the tokens of all layers: with f_e the pairs of expert e and P_e the sum of its p, each over N, the number of
tokens times layers, it is E sum_e f_e P_e. So its gradient to every p_e is E f_e / N, known once forward has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.base import MixtureParts
from loradock.training.expert_load import ExpertLoad


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """`probabilities` float32 [T, E], `experts` int64 [T, K] and their `weights` float32 [T, K]."""

    probabilities: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor


class Balance:
    """What the routers of all layers chose in one pass. `coefficient`: of the balancing loss, 0 without it.

    `load` counts tokens by expert, where there is one. `gradient` float32 [E]: of the loss to the probabilities of
    every real token in every layer, from `loss` on. `forced` int64 [T, K] by layer: choices of another model, which are
    made in the place of the routers', and `rerouted` the share of each layer's that were not among them.
    """

    def __init__(self) -> None:
        self.coefficient = 0.0
        self.load: ExpertLoad | None = None
        self.sums: Sums | None = None
        self.gradient: torch.Tensor | None = None
        self.forced: Sequence[torch.Tensor] = ()
        self.rerouted: list[float] = []

    @contextmanager
    def choosing(self, experts: Sequence[torch.Tensor]) -> Iterator[list[float]]:
        """Inside, the routers choose these, so that no draw is decided otherwise; the shares that were not theirs."""
        self.forced, self.rerouted = experts, []
        try:
            yield self.rerouted
        finally:
            self.forced = ()

    @contextmanager
    def over(self, batch: Tokens) -> Iterator[None]:
        """Inside, one forward pass over this batch adds up what the loss is made of, and one backward pass has it."""
        self.sums = Sums(batch) if self.coefficient else None
        try:
            yield
        finally:
            self.sums = self.gradient = None

    def add(self, routed: Routed, *, layer: int) -> None:
        """Count what a layer's router chose for the tokens of the batch."""
        if self.load is not None:
            self.load.add(layer, routed.experts)
        if self.sums is not None:
            self.sums.add(routed)

    def choice(self, experts: torch.Tensor, *, layer: int) -> torch.Tensor:
        """The experts that are taken where a layer's router chose these, int64 [T, K]."""
        if not self.forced:
            return experts
        forced = self.forced[layer]
        is_same = (experts.unsqueeze(-1) == forced.unsqueeze(-2)).any(dim=-1)
        self.rerouted.append(1 - float(is_same.float().mean()))
        return forced

    def loss(self, weight: torch.Tensor) -> torch.Tensor | None:
        """`weight` times the coefficient times the loss of what was added; None where there is none."""
        if self.sums is None or self.sums.tokens is None:
            return None
        sums, tokens = self.sums, self.sums.tokens.clamp(min=1)
        self.gradient = sums.pairs * (weight * self.coefficient * len(sums.pairs) / tokens.square())
        return self.gradient @ sums.probabilities

    def add_gradient_(self, gradient: torch.Tensor) -> None:
        """Add the loss's to the gradient of a layer's probabilities [T, E]."""
        if self.gradient is not None and self.sums is not None:
            gradient.addr_(self.sums.real, self.gradient)


class Sums:
    """Over the layers of a pass: pairs and probabilities by expert, float32 [E], and tokens, those that are real."""

    def __init__(self, batch: Tokens) -> None:
        self.real = batch.real.float() if batch.real.numel() else torch.ones(batch.tokens, device=batch.ids.device)
        self.pairs = self.probabilities = torch.zeros((), device=batch.ids.device)
        self.tokens: torch.Tensor | None = None

    def add(self, routed: Routed) -> None:
        """One layer more."""
        pairs = torch.zeros_like(routed.probabilities[0])
        weights = self.real.unsqueeze(-1).expand(routed.experts.shape)
        self.pairs = self.pairs + pairs.index_add_(0, routed.experts.reshape(-1), weights.reshape(-1))
        self.probabilities = self.probabilities + self.real @ routed.probabilities
        self.tokens = self.real.sum() + (0 if self.tokens is None else self.tokens)


class Router:
    """One layer's; `weight` [E, hidden], without adapter. `layer`: its number among those with experts."""

    def __init__(self, parts: MixtureParts, balance: Balance, *, layer: int) -> None:
        self.weight = parts.router
        self.balance, self.layer = balance, layer
        self.active, self.is_normalised = parts.active, parts.is_normalised

    def forward(self, x: torch.Tensor) -> Routed:
        """x [T, hidden]; the logits are rounded to its dtype, as transformers' are."""
        probabilities = torch.softmax(linear(x, self.weight.to(x.dtype)), dim=-1, dtype=torch.float32)
        experts = self.balance.choice(probabilities.topk(self.active, dim=-1).indices, layer=self.layer)
        weights = probabilities.gather(1, experts)
        if self.is_normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return Routed(probabilities=probabilities, experts=experts, weights=weights)

    def count(self, routed: Routed) -> None:
        """Add what was chosen to what is counted of the pass."""
        self.balance.add(routed, layer=self.layer)

    def backward_(self, dx: torch.Tensor, dweights: torch.Tensor, routed: Routed) -> torch.Tensor:
        """Add the gradient through weights and balancing loss to dx [T, hidden]; dweights float32 [T, K]."""
        p, weights = routed.probabilities, routed.weights
        if self.is_normalised:
            total = p.gather(1, routed.experts).sum(dim=-1, keepdim=True)
            dweights = (dweights - (dweights * weights).sum(dim=-1, keepdim=True)) / total
        dp = torch.zeros_like(p).scatter_(1, routed.experts, dweights)
        self.balance.add_gradient_(dp)
        dlogits = p * (dp - (dp * p).sum(dim=-1, keepdim=True))
        return dx.addmm_(dlogits.to(dx.dtype), self.weight.to(dx.dtype))
