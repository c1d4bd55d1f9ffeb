"""A frozen router: which experts a token goes to, with which weights, and the gradient through these weights.

    s = softmax(l), sigmoid(l) or l in float32, with logits l = x W^T,   w = the s of the K experts that are chosen by
    s, or by s and a correction of each expert; divided by their sum where the model does so, and times a factor;
    where s = l, the softmax over these

The choice itself has no gradient. `Balance` adds the load-balancing loss (Fedus et al. 2021, equations 4 to 6), one sum
over the tokens of all layers: with f_e the pairs of expert e and P_e the sum of its p, each over N, the number of
tokens times layers, it is E sum_e f_e P_e. So its gradient to every p_e is E f_e / N, known once forward has ended.
There p is a softmax and f counts its K largest, as transformers has it, whatever the router chooses by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import RouterParts
from loradock.training.expert_load import ExpertLoad


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """What the balancing loss is of: `probabilities` float32 [T, E], and the K likeliest `experts` int64 [T, K]."""

    probabilities: torch.Tensor
    experts: torch.Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Routed:
    """`scores` float32 [T, E], `experts` int64 [T, K] and their `weights` float32 [T, K].

    `spread` is None where no balancing loss is asked for.
    """

    scores: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor
    spread: Spread | None


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
        if self.sums is not None and routed.spread is not None:
            self.sums.add(routed.spread)

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

    def add(self, spread: Spread) -> None:
        """One layer more."""
        pairs = torch.zeros_like(spread.probabilities[0])
        weights = self.real.unsqueeze(-1).expand(spread.experts.shape)
        self.pairs = self.pairs + pairs.index_add_(0, spread.experts.reshape(-1), weights.reshape(-1))
        self.probabilities = self.probabilities + self.real @ spread.probabilities
        self.tokens = self.real.sum() + (0 if self.tokens is None else self.tokens)


class Router:
    """One layer's, without adapter. `layer`: its number among those with experts."""

    def __init__(self, parts: RouterParts, balance: Balance, *, layer: int) -> None:
        self.parts, self.balance, self.layer = parts, balance, layer

    def forward(self, x: torch.Tensor) -> Routed:
        """x [T, hidden]."""
        parts = self.parts
        dtype = self.dtype(x)
        logits = linear(x.to(dtype), parts.weight.to(dtype), None if parts.bias is None else parts.bias.to(dtype))
        scores = scores_of(logits, parts.scores)
        experts = self.balance.choice(self.preferred(logits, scores), layer=self.layer)
        weights = scores.gather(1, experts)
        if parts.scores == "logits":
            weights = torch.softmax(weights, dim=-1)
        elif parts.is_normalised:
            weights = weights / self.total(weights)
        if parts.scale is not None:
            weights = weights * parts.scale[experts]
        return Routed(
            scores=scores,
            experts=experts,
            weights=weights if parts.factor == 1.0 else weights * parts.factor,
            spread=self.spread(logits, scores, experts) if self.balance.sums is not None else None,
        )

    def preferred(self, logits: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The experts of the highest scores, corrected and in the best groups, int64 [T, K]."""
        parts = self.parts
        if parts.scores == "sigmoid" and parts.correction is None and parts.groups is None:
            scores = logits.float()  # these still differ where sigmoids are 1
        if parts.correction is not None:
            scores = scores + parts.correction
        if parts.groups is not None:
            count, chosen = parts.groups
            by_group = scores.view(len(scores), count, -1)
            best = by_group.topk(2, dim=-1).values.sum(dim=-1).topk(chosen, dim=-1).indices
            is_out = torch.ones(len(scores), count, dtype=torch.bool, device=scores.device).scatter_(1, best, False)
            scores = by_group.masked_fill(is_out.unsqueeze(-1), -torch.inf).flatten(1)
        return scores.topk(parts.active, dim=-1).indices

    def spread(self, logits: torch.Tensor, scores: torch.Tensor, experts: torch.Tensor) -> Spread:
        """For the balancing loss."""
        if self.is_balanced_by_scores:
            return Spread(probabilities=scores, experts=experts)
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        return Spread(probabilities=probabilities, experts=probabilities.topk(self.parts.active, dim=-1).indices)

    @property
    def is_balanced_by_scores(self) -> bool:
        """Whether the balancing loss is of what the router chooses by."""
        return self.parts.scores == "softmax" and self.parts.correction is None and self.parts.groups is None

    def count(self, routed: Routed) -> None:
        """Add what was chosen to what is counted of the pass."""
        self.balance.add(routed, layer=self.layer)

    def backward_(self, dx: torch.Tensor, dweights: torch.Tensor, routed: Routed) -> torch.Tensor:
        """Add the gradient through weights and balancing loss to dx [T, hidden]; dweights float32 [T, K]."""
        parts, scores = self.parts, routed.scores
        if parts.factor != 1.0:
            dweights = dweights * parts.factor
        if parts.scale is not None:
            dweights = dweights * parts.scale[routed.experts]
        if parts.scores == "logits":
            dweights = softmax_backward(dweights, torch.softmax(scores.gather(1, routed.experts), dim=-1))
        elif parts.is_normalised:
            chosen = scores.gather(1, routed.experts)
            total = self.total(chosen)
            dweights = (dweights - (dweights * chosen).sum(dim=-1, keepdim=True) / total) / total
        dscores = torch.zeros_like(scores).scatter_(1, routed.experts, dweights)
        if self.is_balanced_by_scores:
            self.balance.add_gradient_(dscores)
        dlogits = scores_backward(dscores, scores, parts.scores)
        if routed.spread is not None and not self.is_balanced_by_scores:
            dprobabilities = torch.zeros_like(dlogits)
            self.balance.add_gradient_(dprobabilities)
            dlogits = dlogits + softmax_backward(dprobabilities, routed.spread.probabilities)
        dtype = self.dtype(dx)
        if dtype == dx.dtype:
            return dx.addmm_(dlogits.to(dtype), parts.weight.to(dtype))
        return dx.add_(dlogits @ parts.weight.to(dtype))

    def dtype(self, x: torch.Tensor) -> torch.dtype:
        """That of the logits: as transformers has them, of the hidden states' or float32."""
        return torch.float32 if self.parts.is_float32 else x.dtype

    def total(self, chosen: torch.Tensor) -> torch.Tensor:
        """The sum that a token's scores [T, K] are divided by, [T, 1]."""
        total = chosen.sum(dim=-1, keepdim=True)
        return total.clamp(min=self.parts.floor) if self.parts.floor else total


def scores_of(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """What experts are chosen by, float32 [T, E]: see `RouterParts`."""
    if kind == "softmax":
        return torch.softmax(logits, dim=-1, dtype=torch.float32)
    return torch.sigmoid(logits.float()) if kind == "sigmoid" else logits.float()


def scores_backward(dscores: torch.Tensor, scores: torch.Tensor, kind: str) -> torch.Tensor:
    """The gradient to the logits."""
    if kind == "softmax":
        return softmax_backward(dscores, scores)
    return dscores * scores * (1 - scores) if kind == "sigmoid" else dscores


def softmax_backward(dp: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The gradient to the logits of p = softmax over the last axis."""
    return p * (dp - (dp * p).sum(dim=-1, keepdim=True))
