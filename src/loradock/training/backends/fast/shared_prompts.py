"""Attention where documents share a prompt whose tokens are computed once: each document still sees all of its own.

Queries, keys and values are laid out as whole documents for any backend, and what comes back is folded again. A token
that stands in two documents sees the same tokens in both, so its output is that of the first; the gradients of its key
and its value are the sums over both, and the second query has none.
"""

from __future__ import annotations

import torch

from loradock.training.backends.fast.attention.base import Attention, Gradients, Rule, Saved
from loradock.training.backends.fast.batch import Tokens


def forward(
    attention: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Tokens, rule: Rule
) -> tuple[torch.Tensor, Saved]:
    """See `Attention.forward`; q, k, v and out are of the batch's T tokens."""
    documents = batch.documents.cut(rule.chunk)
    if not batch.unfold.numel():
        return attention.forward(q, k, v, documents, rule)
    queries, keys, values = (each.index_select(0, batch.unfold) for each in (q, k, v))
    out, saved = attention.forward(queries, keys, values, documents, rule)
    return out.index_select(0, batch.fold), saved


def backward(
    attention: Attention,
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    saved: Saved,
    batch: Tokens,
    rule: Rule,
) -> Gradients:
    """See `Attention.backward`; all are of the batch's T tokens, but what was saved."""
    documents = batch.documents.cut(rule.chunk)
    if not batch.unfold.numel():
        return attention.backward(dout, q, k, v, out, saved, documents, rule)
    queries, keys, values, outs = (each.index_select(0, batch.unfold) for each in (q, k, v, out))
    douts = torch.zeros_like(outs).index_copy_(0, batch.fold, dout)
    gradients = attention.backward(douts, queries, keys, values, outs, saved, documents, rule)
    rows = batch.unfold.index_select(0, batch.again)
    dq, dk, dv = (
        each.index_select(0, batch.fold).index_add_(0, rows, each.index_select(0, batch.again)) for each in gradients
    )
    return dq, dk, dv
