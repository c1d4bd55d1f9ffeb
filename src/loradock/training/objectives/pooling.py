"""Pooling: which tokens of a document make its vector, as weights; R = W h, and dh = W' dR."""

from __future__ import annotations

from typing import Any, Literal

import torch

Pooling = Literal["mean", "weightedmean", "lasttoken", "cls"]


def padded(pooled: torch.Tensor, *, pooling: Pooling) -> torch.Tensor:
    """Float32 weights [documents, longest] for rows of tokens; `pooled` bool of that shape: what may count.

    mean: equal weights; weightedmean: 1 to n (SGPT, Muennighoff 2022); lasttoken: the last; cls: the document's first
    token, whether or not it is pooled. Each row sums to 1.
    """
    own = pooled.float()
    if pooling == "weightedmean":
        own = own * own.cumsum(1)
    elif pooling == "lasttoken":
        own = own * (own.cumsum(1) == own.sum(1, keepdim=True))
    elif pooling == "cls":
        own = torch.zeros_like(own)
        own[:, 0] = 1.0
    return own / own.sum(1, keepdim=True)


def flat(pooled: torch.Tensor, lengths: torch.Tensor, *, pooling: Pooling) -> torch.Tensor:
    """The same for documents end to end: float32 [documents, tokens]; `pooled` bool [tokens], `lengths` [documents]."""
    made = torch.zeros(len(lengths), len(pooled))
    first = 0
    for row, length in enumerate(lengths.tolist()):
        inside = slice(first, first + length)
        made[row, inside] = padded(pooled[None, inside], pooling=pooling)[0]
        first += length
    return made


def pooled(model: Any, tensors: dict[str, torch.Tensor], *, is_causal: bool) -> torch.Tensor:
    """Documents' vectors, float32 [documents, hidden]: the states after the final norm, pooled by `pooling`."""
    decoder = model.get_decoder()
    given = {name: tensors[name] for name in ("input_ids", "attention_mask")}
    states = decoder(**given, is_causal=is_causal, use_cache=False).last_hidden_state
    with torch.autocast(states.device.type, enabled=False):
        return torch.einsum("nt,nth->nh", tensors["pooling"], states.float())
