"""What FlashAttention-2's kernels take, whichever library ships them, and how arguments and sinks are made to fit.

Read in csrc/flash_attn/flash_api.cpp of flash-attn 2.8.3.post2; torch builds its kernels from the same project. Each
document that cu_seqlens names, an empty one too, costs backward 128 rows of workspace: 128·H·(D rounded up to 32, above
128 to 64)·4 bytes, 2 MiB at 32 heads of 128. So an end padded by many repeats is dear.
"""

from __future__ import annotations

import torch

from loradock.training.backends.fast.attention.base import Case, Documents, Rule
from loradock.training.backends.fast.attention.mask import check_window

FIRST_CAPABILITY = (8, 0)
LARGEST_HEAD = 256
HEAD_MULTIPLE = 8


def no_flash_kernel(case: Case) -> str | None:
    """Why FlashAttention-2 has no kernel for the case, or None."""
    if case.device != "cuda" or case.capability is None:
        return "FlashAttention-2 needs a GPU"
    if case.capability < FIRST_CAPABILITY:
        major, minor = case.capability
        return f"FlashAttention-2 needs sm80 or newer, this GPU is sm{major}{minor}"
    if case.dtype not in (torch.float16, torch.bfloat16):
        return f"FlashAttention-2 computes in fp16 and bf16, not in {str(case.dtype).removeprefix('torch.')}"
    if case.head_dim > LARGEST_HEAD:
        return f"FlashAttention-2 takes heads of {LARGEST_HEAD} at most, these have {case.head_dim}"
    return None


def launch_limit(documents: Documents) -> int:
    """The longest document as the kernels are told, in tokens: 2 at least.

    At 1 they take the batch for one step of generation, with as many tokens as cu_seqlens has documents.
    """
    return max(documents.longest, 2)


def windows(rule: Rule, documents: Documents) -> tuple[int, int]:
    """How many tokens before itself and behind it a token sees, as the kernels count; -1 is all.

    ValueError for bidirectional documents that are longer than the window.
    """
    if not documents.is_causal:
        check_window(documents.longest_there, rule.window)
        return -1, -1
    return (-1 if rule.window is None else rule.window - 1), 0


def padded(heads: torch.Tensor) -> torch.Tensor:
    """[T, H, D] with D brought up to a multiple of 8 by zeros, which add nothing to a score or to an output."""
    missing = -heads.shape[-1] % HEAD_MULTIPLE
    return torch.nn.functional.pad(heads, (0, missing)) if missing else heads


def unpadded(heads: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Undo `padded`."""
    return heads if heads.shape[-1] == head_dim else heads[..., :head_dim].contiguous()


def sunk_(out: torch.Tensor, logsumexp: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """A sink beside kernels that know none: one more score a query head, of a token whose value is zero.

    M [..., T] from L [..., T]; out [..., T, D] is multiplied in place. `sinks` [...] are of the heads.

    With L the log-sum-exp of a query's scores and s the sink's, the weights that a kernel gave add up to 1 and should
    add up to 1 - exp(s - M), where M = log(exp(L) + exp(s)): its output is multiplied by exp(L - M). Backward makes the
    weights again as exp(score - L) and takes the output's product with its gradient for their mean; from M and the new
    output, in the place of L and the old one, it makes the right gradients, since the sink's value adds nothing to
    either.
    """
    total = torch.logaddexp(logsumexp, sinks.to(logsumexp.dtype).unsqueeze(-1))
    out.mul_(torch.exp(logsumexp - total).unsqueeze(-1).to(out.dtype))
    return total
