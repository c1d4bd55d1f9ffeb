"""Attention on a CPU: torch's own flash kernel, once for each document, forward and backward without recomputing.

The kernel (aten::_scaled_dot_product_flash_attention_for_cpu) takes fp32, bf16, fp16 and fp64, any head size, strides
of 0 between heads and an additive mask; it has no softcap. Each document has a call of its own, so what its neighbours
hold never changes its bits. Nor does its place among them where a token's row in q, k, v, out and dout is a multiple of
64 bytes; elsewhere its memory is aligned otherwise, and the matrix products may differ in the last bit (seen in fp32 at
3 heads of 33). Equal documents in one call were no faster: 25 of 166 tokens, 32 heads of 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loradock.training.backends.fast.attention.base import Case, Documents, Gradients, Rule, Saved
from loradock.training.backends.fast.attention.flash_limits import sunk_
from loradock.training.backends.fast.attention.mask import check_window, needs_mask, visible

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True)
class FlashCpu:
    """torch's flash kernel for CPUs. Saves each document's log-sum-exp, fp32 (fp64 for fp64) [K, H / K, length]."""

    name: str = "flash-cpu"
    merit: str = "torch's flash kernel for CPUs, document by document"
    is_static: bool = False

    def obstacle(self, case: Case) -> str | None:
        """See `Attention.obstacle`."""
        return None if case.softcap is None else "torch's flash kernel has no softcap"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: Documents, rule: Rule
    ) -> tuple[torch.Tensor, Saved]:
        """See `Attention.forward`. Raises ValueError where the rule has a softcap."""
        _refuse_softcap(rule)
        bias = _bias(documents, rule, q)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        saved: list[torch.Tensor] = []
        for start, end in documents.spans():
            queries, keys, values = _grouped(q[start:end], k[start:end], v[start:end])
            mask = _corner(bias, end - start, rule)
            is_causal = mask is None and documents.is_causal
            attended, logsumexp = FORWARD(queries, keys, values, 0.0, is_causal, attn_mask=mask, scale=rule.scale)
            if rule.sinks is not None:
                logsumexp = sunk_(attended, logsumexp, rule.sinks.view(k.shape[1], -1))
            _by_group(out[start:end], k.shape[1]).copy_(attended)
            saved.append(logsumexp)
        return out, tuple(saved)

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
        _refuse_softcap(rule)
        bias = _bias(documents, rule, q)
        dq, dk, dv = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))
        groups = k.shape[1]
        for (start, end), logsumexp in zip(documents.spans(), saved, strict=True):
            queries, keys, values = _grouped(q[start:end], k[start:end], v[start:end])
            mask = _corner(bias, end - start, rule)
            gradients = BACKWARD(
                *(_by_group(dout[start:end], groups), queries, keys, values, _by_group(out[start:end], groups)),
                *(logsumexp, 0.0, mask is None and documents.is_causal),
                attn_mask=mask,
                scale=rule.scale,
            )
            _by_group(dq[start:end], groups).copy_(gradients[0])
            torch.sum(gradients[1], 1, out=dk[start:end].transpose(0, 1))
            torch.sum(gradients[2], 1, out=dv[start:end].transpose(0, 1))
        return dq, dk, dv


def _refuse_softcap(rule: Rule) -> None:
    if rule.softcap is not None:
        raise ValueError("the flash kernel for CPUs has no softcap; per-document has")


def _by_group(rows: torch.Tensor, groups: int) -> torch.Tensor:
    """[L, H, D] seen as [K, H / K, L, D]: key heads in the kernel's place of the batch. A view."""
    return rows.unflatten(1, (groups, -1)).permute(1, 2, 0, 3)


def _grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as the kernel takes them: k and v repeat over their group by a stride of 0, and nothing is copied."""
    queries = _by_group(q, k.shape[1])
    return queries, _by_group(k, k.shape[1]).expand_as(queries), _by_group(v, k.shape[1]).expand_as(queries)


def _bias(documents: Documents, rule: Rule, like: torch.Tensor) -> torch.Tensor | None:
    """The additive mask of the longest document that the window cuts, in `like`'s dtype; None where it cuts none."""
    length = documents.longest_there
    if not documents.is_causal:
        check_window(length, rule.window)
    if not needs_mask(length, rule.window):
        return None
    hidden = visible(length, rule.window, device=like.device).logical_not_()
    return torch.zeros(length, length, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


def _corner(bias: torch.Tensor | None, length: int, rule: Rule) -> torch.Tensor | None:
    """The mask of one document, or None where plain causal attention is the same."""
    return bias[:length, :length] if bias is not None and needs_mask(length, rule.window) else None
