"""The elementwise kernels in plain torch operations: every device, every float dtype; what they do is in `base`.

In float32 the results are those of transformers' modules and of autograd over them, operation by operation. Where
much is made on the way (backward of the gate, cross entropy) the CPU gets a few rows at a time: what one operation
leaves for the next is then still in the cache, which takes about half the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from loradock.training.backends.fast.kernels.base import Activation
from loradock.training.backends.fast.kernels.dropped import lora_down, lora_down_backward_a, lora_down_backward_x_

__all__ = [
    "NAME", "clamped_gate", "clamped_gate_backward_", "cross_entropy_", "gate", "gate_backward_", "lora_down",
    "lora_down_backward_a", "lora_down_backward_x_", "rms_norm", "rms_norm_backward", "rope_",
]  # fmt: skip

NAME: str = "torch"
CPU_ELEMENTS_AT_ONCE = 1 << 17  # a thread, of each tensor: half a MiB in float32


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, offset: bool) -> tuple[Tensor, Tensor]:
    """See `base.Kernels.rms_norm`."""
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    normalised = wide * rstd
    y = normalised * (1.0 + weight.float()) if offset else normalised.to(x.dtype) * weight
    return y.to(x.dtype).contiguous(), rstd.squeeze(-1)


def rms_norm_backward(
    dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor, *, offset: bool, into: Tensor | None = None
) -> Tensor:
    """See `base.Kernels.rms_norm_backward`."""
    scale = rstd.unsqueeze(-1)
    normalised = x.float() * scale
    gradient = dy.float() * ((1.0 + weight.float()) if offset else weight.float())
    along = (gradient * normalised).mean(-1, keepdim=True)
    dx = gradient.sub_(normalised.mul_(along)).mul_(scale)
    return dx.to(x.dtype) if into is None else into.add_(dx)


def rope_(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, sign: int = 1, is_interleaved: bool = False
) -> Tensor:
    """See `base.Kernels.rope_`."""
    half = cos.shape[1] // 2
    c = cos[:, :half].index_select(0, positions).float().unsqueeze(1)
    s = sin[:, :half].index_select(0, positions).float().unsqueeze(1)
    if sign < 0:
        s = -s
    if is_interleaved:
        first, second = x[..., : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    a, b = first.float(), second.float()
    rotated = b * c + a * s
    first.copy_(a * c - b * s)
    second.copy_(rotated)
    return x


def gate(g: Tensor, u: Tensor, act: Activation) -> Tensor:
    """See `base.Kernels.gate`."""
    return _activate(g.float(), act).mul_(u).to(g.dtype)


def gate_backward_(da: Tensor, g: Tensor, u: Tensor, act: Activation) -> Tensor:
    """See `base.Kernels.gate_backward_`."""
    for rows in _few_rows(g):
        wide_g, wide_u, wide_da = g[rows].float(), u[rows].float(), da[rows].float()
        h = _activate(wide_g, act)
        dg = _activate_backward(wide_da * wide_u, wide_g, act)
        a = h * wide_u
        torch.mul(h, wide_da, out=u[rows])
        g[rows] = dg
        da[rows] = a
    return da


def clamped_gate(gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """See `base.Kernels.clamped_gate`."""
    g, u = gate_up[:, ::2].float().clamp(max=limit), gate_up[:, 1::2].float().clamp(-limit, limit)
    return torch.sigmoid(g * alpha).mul_(g).mul_(u.add_(1)).to(gate_up.dtype)


def clamped_gate_backward_(da: Tensor, gate_up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """See `base.Kernels.clamped_gate_backward_`."""
    for rows in _few_rows(gate_up):
        raw_g, raw_u, wide_da = gate_up[rows, ::2].float(), gate_up[rows, 1::2].float(), da[rows].float()
        g, u = raw_g.clamp(max=limit), raw_u.clamp(-limit, limit).add_(1)
        share = torch.sigmoid(g * alpha)
        h = g * share
        slope = share + alpha * h * (1 - share)
        gate_up[rows, ::2] = (wide_da * u * slope).masked_fill_(raw_g > limit, 0.0).to(gate_up.dtype)
        gate_up[rows, 1::2] = (wide_da * h).masked_fill_(raw_u.abs() > limit, 0.0).to(gate_up.dtype)
        da[rows] = h.mul_(u).to(da.dtype)
    return da


def cross_entropy_(
    logits: Tensor, targets: Tensor, weights: Tensor, *, softcap: float | None = None, with_gradient: bool = True
) -> Tensor:
    """See `base.Kernels.cross_entropy_`."""
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    for rows in _few_rows(logits):
        losses[rows] = _cross_entropy_rows_(logits[rows], targets[rows], weights[rows], softcap, with_gradient)
    return losses


def _cross_entropy_rows_(
    logits: Tensor, targets: Tensor, weights: Tensor, softcap: float | None, with_gradient: bool
) -> Tensor:
    wide, targets, padding = logits.float(), targets.unsqueeze(-1), weights == 0
    tanh = None
    if softcap is not None:
        tanh = torch.tanh(wide / softcap)
        wide = tanh * softcap
    log_p = torch.log_softmax(wide, dim=-1)
    losses = (-weights * log_p.gather(-1, targets).squeeze(-1)).masked_fill_(padding, 0.0)
    if not with_gradient:
        return losses
    scale = weights.unsqueeze(-1)
    gradient = log_p.exp_().mul_(scale)
    gradient.scatter_(-1, targets, gradient.gather(-1, targets) - scale)
    if tanh is not None:
        gradient.mul_(1.0 - tanh.square_())
    logits.copy_(gradient.masked_fill_(padding.unsqueeze(-1), 0.0))
    return losses


def _activate(g: Tensor, act: Activation) -> Tensor:
    """act(g), a new tensor; g [T, I] float32."""
    if act == "silu":
        return functional.silu(g)
    return functional.gelu(g, approximate="tanh" if act == "gelu_tanh" else "none")


def _activate_backward(dh: Tensor, g: Tensor, act: Activation) -> Tensor:
    """dh * act'(g); both [T, I] float32."""
    if act == "silu":
        return torch.ops.aten.silu_backward(dh, g)
    return torch.ops.aten.gelu_backward(dh, g, approximate="tanh" if act == "gelu_tanh" else "none")


def _few_rows(x: Tensor) -> Iterator[slice]:
    """Slices over the rows of x; one on a GPU, where each would be another launch."""
    rows, together = x.shape[0], x.shape[0]
    if x.device.type == "cpu" and rows:
        together = max(1, CPU_ELEMENTS_AT_ONCE * torch.get_num_threads() * rows // x.numel())
    for start in range(0, rows, max(1, together)):
        yield slice(start, start + together)
