"""A sink beside kernels that know none: one more score a query head, of a token whose value is zero.

With L the log-sum-exp of a query's scores and s the sink's, the weights that a kernel gave add up to 1 and should add
up to 1 - exp(s - M), where M = log(exp(L) + exp(s)): its output is multiplied by exp(L - M). Backward makes the weights
again as exp(score - L) and takes the output's product with its gradient for their mean; from M and the new output, in
the place of L and the old one, it makes the right gradients, since the sink's value adds nothing to either.
"""

from __future__ import annotations

import torch


def sunk_(out: torch.Tensor, logsumexp: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """M [..., T] from L [..., T]; out [..., T, D] is multiplied in place. `sinks` [...] are of the heads."""
    total = torch.logaddexp(logsumexp, sinks.to(logsumexp.dtype).unsqueeze(-1))
    out.mul_(torch.exp(logsumexp - total).unsqueeze(-1).to(out.dtype))
    return total
