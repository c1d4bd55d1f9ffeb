"""Attention for every other case: document by document, forward without a graph, backward by recomputing.

For GPUs without flash kernels (sm75), fp32 on a GPU, and softcap where flash-attn is missing. Without softcap torch's
scaled_dot_product_attention picks its kernel (memory-efficient on sm75); with softcap the scores are written out, and a
document of n tokens needs H·n·n floats at a time. Backward runs a small autograd region for each document, so it cannot
work inside torch.inference_mode().
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from loradock.training.backends.fast.attention.base import Case, Documents, Gradients, Rule, Saved
from loradock.training.backends.fast.attention.mask import check_window, needs_mask, visible

SINK_COLUMNS = 8
"""By which heads grow for a sink's score: kernels take sizes that are multiples of 8."""


@dataclass(frozen=True)
class PerDocument:
    """Any device, dtype, head size and rule; saves nothing. Launches follow the bounds, so no graph may replay them."""

    name: str = "per-document"
    merit: str = "torch's attention, document by document"
    is_static: bool = False

    def obstacle(self, case: Case) -> str | None:
        """It serves every case."""
        return None

    @torch.no_grad()
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: Documents, rule: Rule
    ) -> tuple[torch.Tensor, Saved]:
        """See `Attention.forward`."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for start, end in documents.spans():
            out[start:end] = _attend(q[start:end], k[start:end], v[start:end], rule, documents)
        return out, ()

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        saved: Saved,
        documents: Documents,
        rule: Rule,
    ) -> Gradients:
        """See `Attention.backward`."""
        gradients = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))
        for start, end in documents.spans():
            leaves = [tensor[start:end].detach().requires_grad_() for tensor in (q, k, v)]
            with torch.enable_grad():
                attended = _attend(leaves[0], leaves[1], leaves[2], rule, documents)
            for whole, part in zip(gradients, torch.autograd.grad(attended, leaves, dout[start:end]), strict=True):
                whole[start:end] = part
        dq, dk, dv = gradients
        return dq, dk, dv


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, documents: Documents) -> torch.Tensor:
    """Attention of one of the documents: q [L, H, D], k and v [L, K, D] -> [L, H, D]."""
    is_causal = documents.is_causal
    if not is_causal:
        check_window(len(q), rule.window)
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:  # not every kernel behind SDPA takes fewer key heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
    if rule.sinks is not None:
        attended = _sunk(q, k, v, rule, rule.sinks, is_causal=is_causal)
    elif rule.softcap is None:
        attended = _sdpa(q, k, v, rule, is_causal=is_causal)
    else:
        attended = _capped(q, k, v, rule, rule.softcap, is_causal=is_causal)
    return attended.squeeze(0).transpose(0, 1)


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, *, is_causal: bool) -> torch.Tensor:
    """[1, H, L, D] each, by the kernel that torch picks; a mask only where the window is shorter than the document."""
    length = q.shape[2]
    mask = visible(length, rule.window, device=q.device) if needs_mask(length, rule.window) else None
    is_plain = mask is None and is_causal
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_plain, scale=rule.scale)


def _sunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, sinks: torch.Tensor, *, is_causal: bool
) -> torch.Tensor:
    """[1, H, L, D] each, by torch's kernel with one more token before all others, whose score is the sink.

    Heads get columns of their own for it: the sink over the scale in the queries, 1 in this token's key alone.
    """
    length, size = q.shape[2:]
    own = torch.zeros(SINK_COLUMNS, dtype=q.dtype, device=q.device)
    own[0] = 1.0
    columns = (sinks.to(q.dtype) / rule.scale).view(1, -1, 1, 1) * own
    q = torch.cat([pad(q, (0, 0, 1, 0)), columns.expand(1, -1, length + 1, -1)], dim=-1)
    k = pad(k, (0, SINK_COLUMNS, 1, 0))
    k[:, :, 0, size] = 1.0
    v = pad(v, (0, SINK_COLUMNS, 1, 0))
    mask = None
    if needs_mask(length, rule.window):
        mask = visible(length + 1, rule.window, device=q.device)
        mask[:, 0] = True
    is_plain = mask is None and is_causal
    attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_plain, scale=rule.scale)
    return attended[:, :, 1:, :size]


def _capped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, softcap: float, *, is_causal: bool
) -> torch.Tensor:
    """[1, H, L, D] each, scores written out; the softmax in fp32 (fp64 for fp64), as transformers' Gemma 2 has it."""
    scores = q @ k.transpose(-1, -2) * rule.scale
    scores = torch.tanh(scores / softcap) * softcap
    if is_causal:
        scores = scores.masked_fill(visible(q.shape[2], rule.window, device=q.device).logical_not(), -torch.inf)
    exact = torch.promote_types(q.dtype, torch.float32)
    return scores.softmax(-1, dtype=exact).to(q.dtype) @ v
