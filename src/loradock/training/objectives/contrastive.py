"""The contrastive loss of queries over passages, with its gradients by hand: no graph reaches across micro-batches.

Over every passage of a step (van den Oord et al. 2018; GritLM, Muennighoff et al. 2024): with e = R / |R| and
s_ij = e_i . e_j / temperature, the loss is the mean over queries of the cross-entropy of s_i at the positive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """The mean loss over the queries (float32, nats), the share that ranks its positive first, and the gradient.

    `gradient` [D, width] float32: the loss differentiated by the vectors given.
    """

    loss: torch.Tensor
    accuracy: torch.Tensor
    gradient: torch.Tensor


def contrast(
    vectors: torch.Tensor,
    *,
    queries: torch.Tensor,
    passages: torch.Tensor,
    positives: torch.Tensor,
    hidden: torch.Tensor,
    temperature: float,
) -> Contrast:
    """Of pooled vectors [D, width], none of them zeros; all in float32.

    `queries` [Q] and `passages` [P] int64 say which are which, `positives` [Q] int64 is each query's own passage among
    the P, and `hidden` [Q, P] bool are passages that a query is not held against.
    """
    vectors = vectors.float()
    norms = vectors.norm(dim=1, keepdim=True)
    units = vectors / norms
    e, p = units[queries], units[passages]
    scores = (e @ p.T / temperature).masked_fill(hidden, -torch.inf)
    rows = torch.arange(len(e), device=e.device)
    log_shares = scores.log_softmax(dim=1)
    by_scores = log_shares.exp()
    by_scores[rows, positives] -= 1
    by_scores /= len(e) * temperature
    gradient = torch.empty_like(units)
    gradient[queries], gradient[passages] = by_scores @ p, by_scores.T @ e
    along = (gradient * units).sum(dim=1, keepdim=True) * units  # what lies along a vector changes no direction
    return Contrast(
        loss=-log_shares[rows, positives].mean(),
        accuracy=(scores.argmax(dim=1) == positives).float().mean(),
        gradient=(gradient - along) / norms,
    )
