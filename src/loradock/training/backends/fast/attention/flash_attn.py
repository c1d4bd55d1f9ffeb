"""Attention by the flash-attn package: all documents in one launch, with window, softcap and grouped heads.

Called beneath its autograd function, through the two functions that it keeps for that (read in 2.8.3.post2). Backward
is deterministic where torch.use_deterministic_algorithms(True) is on; then its bits depend on the GPU and, with few
documents, on how many cu_seqlens names, besides the numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def installed() -> Any:
    """The package's module of functions. Raises ImportError where it is missing or does not load."""
    return importlib.import_module("flash_attn.flash_attn_interface")


@dataclass(frozen=True)
class FlashAttn:
    """flash-attn's kernels. Saves the log-sum-exp, fp32 [H, T], and the kernel's (unused) dropout state."""

    interface: Callable[[], Any] = installed
    name: str = "flash-attn"
    merit: str = "flash-attn's kernels, all documents in one launch"
    is_static: bool = True

    def obstacle(self, case: Case) -> str | None:
        """See `Attention.obstacle`."""
        return no_flash_kernel(case) or (None if case.has_flash_attn else "flash-attn is not installed")

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, documents: Documents, rule: Rule
    ) -> tuple[torch.Tensor, Saved]:
        """See `Attention.forward`."""
        longest = launch_limit(documents)
        out, logsumexp, _, dropout_state = self.interface()._flash_attn_varlen_forward(
            *(padded(q), padded(k), padded(v)),
            *(documents.cu_seqlens, documents.cu_seqlens, longest, longest),
            **_rule(rule, documents),
        )
        if rule.sinks is not None:
            logsumexp = sunk_(out.transpose(0, 1), logsumexp, rule.sinks)
        return unpadded(out, q.shape[-1]), (logsumexp, dropout_state)

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
        logsumexp, dropout_state = saved
        longest = launch_limit(documents)
        inputs = [padded(tensor) for tensor in (q, k, v)]
        gradients = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs]
        self.interface()._flash_attn_varlen_backward(
            *(padded(dout), *inputs, padded(out), logsumexp, *gradients),
            *(documents.cu_seqlens, documents.cu_seqlens, longest, longest),
            **_rule(rule, documents),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            rng_state=dropout_state,
        )
        dq, dk, dv = (unpadded(gradient, q.shape[-1]) for gradient in gradients)
        return dq, dk, dv


def _rule(rule: Rule, documents: Documents) -> dict[str, Any]:
    left, right = windows(rule, documents)
    return {
        "dropout_p": 0.0,
        "softmax_scale": rule.scale,
        "causal": documents.is_causal,
        "window_size_left": left,
        "window_size_right": right,
        "softcap": rule.softcap or 0.0,
        "alibi_slopes": None,
    }
