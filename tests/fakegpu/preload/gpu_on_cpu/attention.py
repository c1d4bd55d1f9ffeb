"""Operators that CPUs have no kernel for: fused attention, document by document in float32, wide products, cuDNN's."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Masked:
    """How scores are scaled and which a query sees; `left` and `right` bound a window where they are not negative."""

    scale: float
    causal: bool
    left: int = -1
    right: int = -1

    @classmethod
    def of(cls, query: Tensor, scale: float | None, causal: bool, left: int | None = None, right: int | None = None):
        """From an operator's arguments."""
        found = float(query.shape[-1]) ** -0.5 if scale is None else scale
        return cls(found, causal, -1 if left is None else left, -1 if right is None else right)

    def seen(self, rows: int, columns: int) -> Tensor:
        """[rows, columns], True where a query sees a key."""
        i = torch.arange(rows)[:, None] + (columns - rows)
        j = torch.arange(columns)[None]
        seen = torch.ones(rows, columns, dtype=torch.bool)
        if self.left >= 0:
            seen &= j >= i - self.left
        if self.causal or self.right >= 0:
            seen &= j <= i + (0 if self.causal else self.right)
        return seen


def documents_of(cumulative: Tensor, count: int) -> list[tuple[int, int]]:
    """First and last row of each document; a count that does not rise is an illegal access on a device."""
    bounds = cumulative.tolist()
    if bounds[0] != 0 or bounds != sorted(bounds) or bounds[-1] > count:
        raise RuntimeError(f"CUDA error: cu_seqlens is no rising count: {bounds[:8]}..{bounds[-3:]}, {count} rows")
    return [(a, b) for a, b in pairwise(bounds) if a != b]


def scores(q: Tensor, k: Tensor, masked: Masked, bias: Tensor | None) -> Tensor:
    """[heads, queries, keys] in float32."""
    found = q @ k.transpose(1, 2) * masked.scale
    found = found if bias is None else found + bias.float()
    return found.masked_fill(~masked.seen(q.shape[1], k.shape[1]), -torch.inf)


def heads_first(*tensors: Tensor) -> list[Tensor]:
    """[tokens, heads, size] as [heads, tokens, size] in float32."""
    return [tensor.float().transpose(0, 1) for tensor in tensors]


def attend(q: Tensor, k: Tensor, v: Tensor, masked: Masked, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q [L, H, D], k and v [S, K, D] -> out [L, H, D], logsumexp [H, L]; float32."""
    repeats = q.shape[1] // k.shape[1]
    q, k, v = heads_first(q, k, v)
    found = scores(q, k.repeat_interleave(repeats, 0), masked, bias)
    out = found.softmax(-1).nan_to_num(0.0) @ v.repeat_interleave(repeats, 0)
    return out.transpose(0, 1), torch.logsumexp(found, -1)


def attend_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    masked: Masked,
    bias: Tensor | None = None,
    *,
    kept: tuple[Tensor, Tensor] | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of q, k, v, each [tokens, heads, size], and of the scores.

    `kept`: out [L, H, D] and logsumexp [H, L], from which FlashAttention-2's kernels make the weights again.
    """
    repeats = q.shape[1] // k.shape[1]
    do, q, k, v = heads_first(dout, q, k, v)
    wide_k, wide_v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
    found, dweights = scores(q, wide_k, masked, bias), do @ wide_v.transpose(1, 2)
    if kept is None:
        weights = found.softmax(-1).nan_to_num(0.0)
        mean = (dweights * weights).sum(-1, keepdim=True)
    else:
        weights = torch.exp(found - kept[1].unsqueeze(-1))
        mean = (do * heads_first(kept[0])[0]).sum(-1, keepdim=True)
    ds = weights * (dweights - mean)
    dk, dv = ds.transpose(1, 2) @ q * masked.scale, weights.transpose(1, 2) @ do
    dk, dv = (t.unflatten(0, (-1, repeats)).sum(1) for t in (dk, dv))
    return [t.transpose(0, 1) for t in (ds @ wide_k * masked.scale, dk, dv)], ds


def states(query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The random state, its offset and the debug mask, which nothing reads without dropout."""
    return torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), torch.empty(0, dtype=query.dtype)


def flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
    *, scale=None, window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None,
):  # fmt: skip
    masked = Masked.of(query, scale, is_causal, window_size_left, window_size_right)
    if cum_seq_q is None:
        found = [attend(q, k, v, masked) for q, k, v in zip(query, key, value, strict=True)]
        outs, sums = zip(*found, strict=True)
        return torch.stack(outs).to(query.dtype), torch.stack(sums), *states(query)
    if max_q == 1 and query.shape[1] > key.shape[1]:
        raise RuntimeError("max_q of 1 is taken for generation")
    out = torch.full_like(query, float("nan"), memory_format=torch.contiguous_format)
    sums = torch.full((query.shape[1], query.shape[0]), float("nan"))
    for a, b in documents_of(cum_seq_q, query.shape[0]):
        end = min(b, a + max_q)  # the grid has blocks for max_q rows alone
        document, its_sums = attend(query[a:b], key[a:b], value[a:b], masked)
        out[a:end], sums[:, a:end] = document[: end - a].to(out.dtype), its_sums[:, : end - a]
    return out, sums, *states(query)


def flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state,
    unused, *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    masked = Masked.of(query, scale, is_causal, window_size_left, window_size_right)
    if cum_seq_q is None:
        rows = zip(grad_out, query, key, value, strict=True)
        parts = [attend_backward(do, q, k, v, masked)[0] for do, q, k, v in rows]
        return tuple(torch.stack([part[i] for part in parts]).to(query.dtype) for i in range(3))
    results = [torch.full_like(t, float("nan"), memory_format=torch.contiguous_format) for t in (query, key, value)]
    for a, b in documents_of(cum_seq_q, query.shape[0]):
        kept = (out[a:b], logsumexp[:, a:b])
        parts, _ = attend_backward(grad_out[a:b], query[a:b], key[a:b], value[a:b], masked, kept=kept)
        for whole, part in zip(results, parts, strict=True):
            whole[a:b] = part.to(whole.dtype)
    return tuple(results)


def tokens_first(*tensors: Tensor) -> list[Tensor]:
    """[batch, heads, tokens, size] as [batch, tokens, heads, size], or back."""
    return list(map(heads_second, tensors))


def sdpa_flash(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    rows, columns = query.shape[2], key.shape[2]
    q, k, v = tokens_first(query, key, value)
    out, sums, state, offset, debug = flash_forward(
        q, k, v, None, None, rows, columns, dropout_p, is_causal, False, scale=scale
    )
    return out.transpose(1, 2), sums, None, None, rows, columns, state, offset, debug


def sdpa_flash_backward(
    grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed,
    philox_offset, *, scale=None,
):  # fmt: skip
    do, q, k, v, o = tokens_first(grad_out, query, key, value, out)
    found = flash_backward(
        do, q, k, v, o, logsumexp, None, None, max_q, max_k, dropout_p, is_causal, None, None, scale=scale
    )
    return tuple(tokens_first(*found))


def bias_of(bias: Tensor | None, row: int) -> Tensor | None:
    """A row's bias, where one serves all rows or each has its own."""
    return None if bias is None else bias[row if bias.shape[0] > 1 else 0]


def sdpa_efficient(
    query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
):  # fmt: skip
    masked = Masked.of(query, scale, is_causal)
    rows = enumerate(zip(*map(heads_second, (query, key, value)), strict=True))
    found = [attend(q, k, v, masked, bias_of(attn_bias, i)) for i, (q, k, v) in rows]
    outs, sums = (torch.stack(each) for each in zip(*found, strict=True))
    filled = torch.nn.functional.pad(sums, (0, -sums.shape[-1] % 32), value=float("inf"))
    state = torch.zeros((), dtype=torch.int64)
    kept = filled if compute_log_sumexp else sums[..., :0]
    return outs.to(query.dtype).transpose(1, 2), kept, state, state.clone()


def heads_second(tensor: Tensor) -> Tensor:
    """[batch, heads, tokens, size] as [batch, tokens, heads, size]."""
    return tensor.transpose(1, 2)


def sdpa_efficient_backward(
    grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask,
    is_causal=False, *, scale=None,
):  # fmt: skip
    masked = Masked.of(query, scale, is_causal)
    rows = enumerate(zip(*map(heads_second, (grad_out_, query, key, value)), strict=True))
    found = [attend_backward(do, q, k, v, masked, bias_of(attn_bias, i)) for i, (do, q, k, v) in rows]
    dq, dk, dv = (torch.stack([parts[i] for parts, _ in found]).to(query.dtype).transpose(1, 2) for i in range(3))
    db = torch.stack([ds for _, ds in found]).to(query.dtype) if grad_input_mask[3] else None
    return dq, dk, dv, db


def wide_product(name: str) -> Any:
    """mm, bmm, addmm, baddbmm with a dtype of their own for the result, which CPUs do not have."""
    is_added = "add" in name

    def product(*args: Any, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
        *terms, left, right, dtype = args
        found = left.to(dtype) @ right.to(dtype)
        if is_added:
            found = beta * terms[0].to(dtype) + alpha * found
        return found if out is None else out.copy_(found)

    return product


def depthwise(x: Any, weight: Any, _size: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    """A convolution of each channel by itself, of which the CPU has no operator of its own."""
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups=x.shape[1])


def convolved(x: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any) -> torch.Tensor:
    """What cuDNN's convolution gives, by the CPU's own."""
    return torch.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


SPECIAL: dict[str, Any] = {
    "aten::cudnn_convolution": convolved,
    "aten::_conv_depthwise2d": depthwise,
    **{
        f"aten::{name}.{kind}": wide_product(name)
        for name in ("mm", "bmm", "addmm", "baddbmm")
        for kind in ("dtype", "dtype_out")
    },
    "aten::_flash_attention_forward": flash_forward,
    "aten::_flash_attention_backward": flash_backward,
    "aten::_scaled_dot_product_flash_attention": sdpa_flash,
    "aten::_scaled_dot_product_flash_attention_backward": sdpa_flash_backward,
    "aten::_scaled_dot_product_efficient_attention": sdpa_efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": sdpa_efficient_backward,
}
"""What CPUs have no kernel of their own for."""
