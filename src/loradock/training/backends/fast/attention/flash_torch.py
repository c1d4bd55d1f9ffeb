"""Attention on GPUs from sm80 on: torch's own flash-attention kernels, all documents in one launch.

The operators (aten::_flash_attention_forward and _backward, FlashAttention-2, arXiv:2307.08691) ship with torch: fp16
and bf16, head sizes to 256, window and grouped heads inside, no softcap. Backward sums dq by atomic additions, so its
bits vary from run to run, unless torch.use_deterministic_algorithms(True) is on; then they depend on the GPU and, with
few documents, on how many cu_seqlens names, besides the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loradock.training.backends.fast.attention.base import Case, Documents, Gradients, Rule, Saved
from loradock.training.backends.fast.attention.flash_limits import (
    launch_limit,
    no_flash_kernel,
    padded,
    sunk_,
    unpadded,
    windows,
)

FORWARD = torch.ops.aten._flash_attention_forward.default
BACKWARD = torch.ops.aten._flash_attention_backward.default


@dataclass(frozen=True)
class FlashTorch:
    """torch's flash kernels. Saves the log-sum-exp, fp32 [H, T], and the kernel's two (unused) dropout states."""

    name: str = "flash-torch"
    merit: str = "torch's own flash kernels, all documents in one launch"
    is_static: bool = True

    def obstacle(self, case: Case) -> str | None:
        """See `Attention.obstacle`."""
        return no_flash_kernel(case) or (None if case.softcap is None else "torch's flash kernel has no softcap")

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: Documents, rule: Rule
    ) -> tuple[torch.Tensor, Saved]:
        """See `Attention.forward`. Raises ValueError where the rule has a softcap."""
        _refuse_softcap(rule)
        out, logsumexp, seed, offset, _ = FORWARD(
            *(padded(q), padded(k), padded(v)),
            *_common(documents),
            False,  # no debug mask
            **_window(rule, documents),
        )
        if rule.sinks is not None:
            logsumexp = sunk_(out.transpose(0, 1), logsumexp, rule.sinks)
        return unpadded(out, q.shape[-1]), (logsumexp, seed, offset)

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
        logsumexp, seed, offset = saved
        dq, dk, dv = BACKWARD(
            *(padded(dout), padded(q), padded(k), padded(v), padded(out), logsumexp),
            *_common(documents),
            *(seed, offset),
            **_window(rule, documents),
        )
        return unpadded(dq, q.shape[-1]), unpadded(dk, q.shape[-1]), unpadded(dv, q.shape[-1])


def _refuse_softcap(rule: Rule) -> None:
    if rule.softcap is not None:
        raise ValueError("torch's flash kernel has no softcap; flash-attn and per-document have")


def _common(documents: Documents) -> tuple[torch.Tensor, torch.Tensor, int, int, float, bool]:
    """The arguments from cum_seq_q to is_causal."""
    longest = launch_limit(documents)
    return documents.cu_seqlens, documents.cu_seqlens, longest, longest, 0.0, documents.is_causal


def _window(rule: Rule, documents: Documents) -> dict[str, float | int]:
    left, right = windows(rule, documents)
    return {"scale": rule.scale, "window_size_left": left, "window_size_right": right}
