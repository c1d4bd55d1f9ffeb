"""A dense float64 reference for attention over documents, and problems to hold a backend against it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from loradock.training.backends.fast.attention.base import Attention, Documents, Rule

Gradients = tuple[Tensor, ...]


def visible(bounds: Sequence[int], left: int, right: int) -> Tensor:
    """Bool [T, T]: which token sees which: its own document, `left` back and `right` on, -1 for all."""
    document = torch.cat([torch.full((end - start,), i) for i, (start, end) in enumerate(pairwise(bounds))])
    back = torch.arange(len(document))[:, None] - torch.arange(len(document))
    seen = document[:, None] == document
    seen &= (back <= left) if left >= 0 else seen
    return seen & ((-back <= right) if right >= 0 else seen)


def scored(q: Tensor, k: Tensor, seen: Tensor, scale: float, softcap: float) -> Tensor:
    """q, k [H, T, D] -> [H, T, T], minus infinity where nothing is seen; a softcap of 0 is none."""
    scores = q @ k.transpose(1, 2) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    return scores.masked_fill(~seen, -torch.inf)


def weights(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Weights of scores [H, T, T]. `sinks` [H] are scores of one more column, which goes."""
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat([scores, sinks.to(scores).view(-1, 1, 1).expand(-1, scores.shape[1], 1)], -1).softmax(-1)[..., :-1]


def dense(
    *tensors: Tensor,
    bounds: Sequence[int],
    scale: float,
    left: int = -1,
    right: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [T, H, D], k and v [T, K, D] -> out in float64, by one table of all tokens."""
    q, k, v = (tensor.double().transpose(0, 1) for tensor in tensors)
    k, v = (tensor.repeat_interleave(len(q) // len(k), 0) for tensor in (k, v))
    return (weights(scored(q, k, visible(bounds, left, right), scale, softcap), sinks) @ v).transpose(0, 1)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Inputs, and the documents that they are."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    documents: Documents

    def reference(self, rule: Rule, **other: Any) -> Gradients:
        """out, dq, dk, dv in float64; `other` overrides what `dense` is told."""
        leaves = [tensor.double().requires_grad_() for tensor in (self.q, self.k, self.v)]
        told = {
            "bounds": self.documents.bounds,
            "scale": rule.scale,
            "left": -1 if rule.window is None or not self.documents.is_causal else rule.window - 1,
            "right": 0 if self.documents.is_causal else -1,
            "softcap": rule.softcap or 0.0,
            "sinks": rule.sinks,
        }
        out = dense(*leaves, **(told | other))
        return out.detach(), *torch.autograd.grad(out, leaves, self.dout.double())

    def solve(self, attention: Attention, rule: Rule) -> Gradients:
        """out, dq, dk, dv by a backend."""
        with torch.no_grad():
            out, saved = attention.forward(self.q, self.k, self.v, self.documents, rule)
            gradients = attention.backward(self.dout, self.q, self.k, self.v, out, saved, self.documents, rule)
        return out, *gradients

    def bidirectional(self) -> "Problem":
        """The same, in which each token sees all of its document."""
        return replace(self, documents=replace(self.documents, is_causal=False))

    def part(self, start: int, end: int) -> "Problem":
        """One document on its own, in memory of its own."""
        q, k, v, dout = (tensor[start:end].clone() for tensor in (self.q, self.k, self.v, self.dout))
        return Problem(q=q, k=k, v=v, dout=dout, documents=lay([end - start]))


def lay(lengths: Sequence[int], *, repeats: int = 0) -> Documents:
    """Documents of these lengths, end to end; cu_seqlens padded by `repeats` empty ones."""
    bounds = tuple(accumulate(lengths, initial=0))
    padded = torch.tensor(bounds + bounds[-1:] * repeats, dtype=torch.int32)
    return Documents(bounds=bounds, cu_seqlens=padded, longest=max(lengths))


def problem(
    lengths: Sequence[int] = (1, 2, 7, 33, 1, 16, 5),
    *,
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    repeats: int = 3,
) -> Problem:
    """Random inputs: q, k and v views of one tensor, as a fused projection gives them; the last document is padding."""
    torch.manual_seed(7)
    tokens = sum(lengths)
    q, k, v = torch.randn(tokens, heads + 2 * groups, size, dtype=dtype).split([heads, groups, groups], 1)
    dout = torch.randn(tokens, heads, size, dtype=dtype)
    dout[tokens - lengths[-1] :] = 0
    return Problem(q=q, k=k, v=v, dout=dout, documents=lay(lengths, repeats=repeats))


def worst(found: Gradients, expected: Gradients) -> float:
    """The largest error of a tensor, as a part of its largest entry, or of 1 where that is smaller."""
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in zip(found, expected, strict=True))


def same_bits(found: Gradients, expected: Gradients) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
