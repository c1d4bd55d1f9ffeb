"""Stand-ins for kernels that need a card: their signatures and their documented meaning, computed by dense attention.

They keep to what the kernels promise and no more: a row beyond `max_seqlen` of its document is not a number, as memory
that no kernel wrote may be, and arguments that the kernels refuse fail here too.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from training.backends.fast.attention.dense import scored, visible

# flash_attn/flash_attn_interface.py of flash-attn 2.8.3.post2, lines 143-163 and 330-354.
FLASH_ATTN_FORWARD = """
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
    window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None, return_softmax=False,
    block_table=None, leftpad_k=None, seqused_k=None, zero_tensors=False
"""
FLASH_ATTN_BACKWARD = """
    dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
    softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, deterministic,
    rng_state=None, zero_tensors=False
"""
RNG_STATE = torch.tensor([3, 4])


def signature(text: str) -> inspect.Signature:
    """The signature that a parameter list spells."""
    made: dict[str, Any] = {}
    exec(f"def function({text}): ...", made)
    return inspect.signature(made["function"])


class Told:
    """What a kernel is told, by flash-attn's names, and what it computes from that."""

    def __init__(self, **given: Any) -> None:
        assert given["cu_seqlens_q"] is given["cu_seqlens_k"]
        assert given["max_seqlen_q"] == given["max_seqlen_k"] > 1, "at 1 the kernels take the batch for generation"
        assert given["dropout_p"] == 0.0
        self.scale, self.softcap, self.longest = given["softmax_scale"], given["softcap"], given["max_seqlen_q"]
        bounds = given["cu_seqlens_q"].tolist()
        right = 0 if given["causal"] else given["window_size_right"]
        self.seen = visible(bounds, given["window_size_left"], right)
        self.place = torch.cat([torch.arange(end - start) for start, end in pairwise(bounds)])

    def out(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[T, H, D] in the dtype of q, and the log-sum-exp, float32 [H, T]."""
        scores, _, heads = self._scores(q, k, v)
        logsumexp = scores.logsumexp(-1)
        return self._written(scores.softmax(-1) @ heads[2]).to(q.dtype), logsumexp.float()

    def gradients(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv by the formulas of FlashAttention-2 (arXiv:2307.08691), in the dtype of q."""
        scores, slope, (q64, k64, v64) = self._scores(q, k, v)
        table = (scores - logsumexp.double().unsqueeze(-1)).exp()
        dout64, out64 = dout.double().transpose(0, 1), out.double().transpose(0, 1)
        dv = table.transpose(1, 2) @ dout64
        along = (dout64 * out64).sum(-1, keepdim=True)
        dscores = table * (dout64 @ v64.transpose(1, 2) - along) * slope * self.scale
        dq, dk = dscores @ k64, dscores.transpose(1, 2) @ q64
        dk, dv = (grouped.unflatten(0, (k.shape[1], -1)).sum(1) for grouped in (dk, dv))
        return self._written(dq).to(q.dtype), self._written(dk).to(q.dtype), self._written(dv).to(q.dtype)

    def _scores(self, *tensors: Tensor) -> tuple[Tensor, Tensor | float, tuple[Tensor, ...]]:
        """Scores [H, T, T], the slope of the cap, and q, k, v in float64 with k and v repeated."""
        assert all(tensor.shape[-1] % 8 == 0 and tensor.shape[-1] <= 256 for tensor in tensors)
        assert all(tensor.stride(-1) == 1 for tensor in tensors)
        repeats = tensors[0].shape[1] // tensors[1].shape[1]
        q, k, v = (tensor.double().transpose(0, 1) for tensor in tensors)
        k, v = k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)
        scores = q @ k.transpose(1, 2) * self.scale
        slope = 1 - torch.tanh(scores / self.softcap) ** 2 if self.softcap else 1.0
        return scored(q, k, self.seen, self.scale, self.softcap), slope, (q, k, v)

    def _written(self, heads: Tensor) -> Tensor:
        """[H, T, D] as [T, H, D]; a row that no block of the launch reaches is not a number."""
        return heads.transpose(0, 1).masked_fill((self.place >= self.longest)[:, None, None], torch.nan)


class FlashAttnStandIn:
    """The two functions of the flash-attn package beneath its autograd function, with their recorded signatures."""

    def __init__(self) -> None:
        self.deterministic: list[bool] = []

    def _flash_attn_varlen_forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        bound = signature(FLASH_ATTN_FORWARD).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        out, logsumexp = Told(**given).out(given["q"], given["k"], given["v"])
        return out, logsumexp, torch.empty(0), RNG_STATE

    def _flash_attn_varlen_backward(self, *args: Any, **kwargs: Any) -> Tensor:
        bound = signature(FLASH_ATTN_BACKWARD).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        assert given["rng_state"] is RNG_STATE
        assert given["softmax_lse"].shape == (given["q"].shape[1], len(given["q"]))
        self.deterministic.append(given["deterministic"])
        computed = Told(**given).gradients(*(given[name] for name in ("dout", "q", "k", "v", "out", "softmax_lse")))
        for name, gradient in zip(("dq", "dk", "dv"), computed, strict=True):
            given[name].copy_(gradient)
        return given["softmax_lse"]


@contextmanager
def flash_torch_stand_in() -> Iterator[None]:
    """While open, torch's two operators run on a CPU: torch checks the calls against its own schema."""
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_flash_attention_forward", _torch_forward)
    library.impl("_flash_attention_backward", _torch_backward)
    try:
        yield
    finally:
        library._destroy()


def _told(*common: Any, scale: float, **window: int) -> Told:
    names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "dropout_p", "causal")
    return Told(**dict(zip(names, common, strict=True)), **window, softmax_scale=scale, softcap=0.0)


def _torch_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **window: Any) -> tuple[Tensor, ...]:
    *common, debug = rest
    assert not debug
    out, logsumexp = _told(*common, **window).out(q, k, v)
    return out, logsumexp, RNG_STATE, RNG_STATE[0], torch.empty(0)


def _torch_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, *rest: Any, **window: Any
) -> tuple[Tensor, ...]:
    *common, seed, offset = rest
    assert logsumexp.shape == (q.shape[1], len(q))
    assert torch.equal(seed, RNG_STATE)
    assert torch.equal(offset, RNG_STATE[0])
    return _told(*common, **window).gradients(dout, q, k, v, out, logsumexp)
