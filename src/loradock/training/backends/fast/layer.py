"""One decoder layer, forward and backward: what each half keeps between the two is all in its `...Kept`.

For a token of hidden size h, with q, k, v the projected sizes and I the MLP's, a layer keeps 2h (the inputs of both
halves), q + k + v, q (attention's output) and 2I elements of the compute dtype; norms and the gate's product are
computed again in backward. A checkpointed layer keeps h, its input. Within the second half, a gated MLP and a mixture
of experts are implementations of one interface (`mlp`); a mixture keeps 2I for each expert of a token, shared ones too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from loradock.training.backends.fast import shared_prompts
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.base import LayerParts, MixtureParts, Norm
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup
from loradock.training.backends.fast.mlp.base import Frozen, Mlp
from loradock.training.backends.fast.mlp.dense import Dense
from loradock.training.backends.fast.mlp.mixture import Mixture
from loradock.training.backends.fast.mlp.router import Balance
from loradock.training.backends.fast.weights import DenseRoom

GROUPS, ADAPTERS_A_GROUP = 4, 16
"""A layer's groups of linear layers, and numbers set aside for the adapters of one."""
ADAPTERS_OF_FIRST = 8
"""Of these, what the first group leaves to a fifth, as is the gate of a shared expert."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionKept:
    """What the attention half's backward needs. q and k [T, heads, size] are before their norm, or after rotation."""

    x: torch.Tensor
    rstd: torch.Tensor
    h: torch.Tensor | None
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_rstd: torch.Tensor | None
    k_rstd: torch.Tensor | None
    out: torch.Tensor
    attention: Any
    h_output: torch.Tensor | None
    unnormed: torch.Tensor | None
    out_rstd: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class MlpKept:
    """What the MLP half's backward needs."""

    x: torch.Tensor
    rstd: torch.Tensor
    inner: Any
    unnormed: torch.Tensor | None
    out_rstd: torch.Tensor | None


LayerKept = tuple[AttentionKept, MlpKept]


class Layer:
    """One decoder layer over flat batches."""

    def __init__(
        self,
        parts: LayerParts,
        *,
        adapters: FlatAdapters,
        room: DenseRoom,
        balance: Balance,
        table: tuple[torch.Tensor, torch.Tensor] | None,
        attention: Attention,
        kernels: Kernels,
        index: int,
        mixture: int,
        is_lowest: bool,
    ) -> None:
        """`index`: of the layer, `mixture`: of those that have experts. `table`: see `ModelParts`; None turns nothing.

        `is_lowest`: nothing is trained below, so that the gradient to its input is not asked for.
        """
        self.parts = parts
        self.qkv, self.output, *of_mlp = (
            LinearGroup(modules, adapters, room, kernels=kernels, first=first_adapter(index, group))
            for group, modules in enumerate(parts.groups())
        )
        if isinstance(parts.mlp, MixtureParts):
            self.mlp: Mlp = Mixture(parts.mlp, of_mlp, adapters, room, balance, kernels=kernels, index=mixture)
        else:
            gate_up, down = of_mlp
            self.mlp = Dense(gate_up, down, activation=parts.mlp.activation, kernels=kernels)
        self.table = table
        self.attention = attention
        self.kernels = kernels
        self.is_lowest = is_lowest

    def forward(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, LayerKept]:
        """x [T, hidden] -> [T, hidden], and what backward needs."""
        y, attention = self._attention_forward(x, batch)
        z, mlp = self._mlp_forward(y, batch)
        return z, (attention, mlp)

    def recompute(self, x: torch.Tensor, batch: Tokens) -> LayerKept:
        """What backward needs, from x [T, hidden] again; the last product, which it does not read, is left out."""
        y, attention = self._attention_forward(x, batch)
        if self.parts.mlp_out_norm is not None:
            _, mlp = self._mlp_forward(y, batch)
            return attention, mlp
        rstd, halfway = self._mlp_first(y, batch)
        inner = self.mlp.recomputed(halfway, batch)
        return attention, MlpKept(x=y, rstd=rstd, inner=inner, unnormed=None, out_rstd=None)

    def backward(self, dz: torch.Tensor, kept: LayerKept, batch: Tokens) -> torch.Tensor:
        """The gradient to the layer's input, in the storage of `dz` [T, hidden]; its adapters' into the flat buffer."""
        attention, mlp = kept
        return self._attention_backward(self._mlp_backward(dz, mlp, batch), attention, batch)

    def groups(self) -> tuple[LinearGroup, ...]:
        """All linear layers."""
        return self.qkv, self.output, *self.mlp.linears()

    def frozen(self) -> tuple[Frozen, ...]:
        """All frozen matrices that may have adapters."""
        return self.qkv, self.output, *self.mlp.frozen()

    def _attention_forward(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, AttentionKept]:
        parts = self.parts
        normed, rstd = self._norm(x, parts.attention_norm)
        joined, h = self.qkv.forward(normed, keys=batch.keys)
        both, q, k, v = self._split(joined)
        raw_q, q_rstd = q, None
        raw_k, k_rstd = k, None
        if parts.query_norm is not None and parts.key_norm is not None:
            q, q_rstd = self._head_norm(raw_q, parts.query_norm)
            k, k_rstd = self._head_norm(raw_k, parts.key_norm)
            self._rotate(q, batch, sign=1)
            self._rotate(k, batch, sign=1)
        else:
            self._rotate(both if parts.turns_keys else q, batch, sign=1)
        out, saved = shared_prompts.forward(self.attention, q, k, v, batch, parts.rule)
        y, h_output = self.output.forward(out.flatten(1), keys=batch.keys)
        unnormed, out_rstd = None, None
        if parts.attention_out_norm is not None:
            unnormed = y
            y, out_rstd = self._norm(y, parts.attention_out_norm)
        kept = AttentionKept(
            x=x,
            rstd=rstd,
            h=h,
            q=raw_q,
            k=raw_k,
            v=v,
            q_rstd=q_rstd,
            k_rstd=k_rstd,
            out=out,
            attention=saved,
            h_output=h_output,
            unnormed=unnormed,
            out_rstd=out_rstd,
        )
        return self._scaled(y).add_(x), kept

    def _attention_backward(self, dy: torch.Tensor, kept: AttentionKept, batch: Tokens) -> torch.Tensor:
        parts = self.parts
        inner = self._out_norm_backward(dy, kept.unnormed, kept.out_rstd, parts.attention_out_norm)
        dh = self.output.backward_b(inner, kept.h_output)
        dout = self.output.backward_input(inner, dh, keys=batch.keys)
        self.output.backward_a(dh, kept.out.flatten(1), keys=batch.keys)
        q, k = kept.q, kept.k
        if parts.query_norm is not None and parts.key_norm is not None:
            q, _ = self._head_norm(kept.q, parts.query_norm)
            k, _ = self._head_norm(kept.k, parts.key_norm)
            self._rotate(q, batch, sign=1)
            self._rotate(k, batch, sign=1)
        dq, dk, dv = shared_prompts.backward(
            self.attention, dout.view_as(kept.out), q, k, kept.v, kept.out, kept.attention, batch, parts.rule
        )
        if parts.query_norm is not None and parts.key_norm is not None:
            self._rotate(dq, batch, sign=-1)
            self._rotate(dk, batch, sign=-1)
            dq = self._head_norm_backward(dq, kept.q, kept.q_rstd, parts.query_norm)
            dk = self._head_norm_backward(dk, kept.k, kept.k_rstd, parts.key_norm)
        joined = torch.cat([dq, dk, dv], dim=1)
        if parts.query_norm is None:
            turned = kept.q.shape[1] + parts.turns_keys * kept.k.shape[1]
            self._rotate(joined[:, :turned], batch, sign=-1)
        joined = joined.flatten(1)
        dh = self.qkv.backward_b(joined, kept.h)
        if dh is not None:
            normed, _ = self._norm(kept.x, parts.attention_norm)
            self.qkv.backward_a(dh, normed, keys=batch.keys)
        if self.is_lowest:
            return dy
        dn = self.qkv.backward_input(joined, dh, keys=batch.keys)
        norm = parts.attention_norm
        return self.kernels.rms_norm_backward(dn, kept.x, kept.rstd, norm.weight, offset=norm.offset, into=dy)

    def _mlp_forward(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, MlpKept]:
        parts = self.parts
        rstd, halfway = self._mlp_first(x, batch)
        y, inner = self.mlp.second(halfway, batch)
        del halfway
        unnormed, out_rstd = None, None
        if parts.mlp_out_norm is not None:
            unnormed = y
            y, out_rstd = self._norm(y, parts.mlp_out_norm)
        return self._scaled(y).add_(x), MlpKept(x=x, rstd=rstd, inner=inner, unnormed=unnormed, out_rstd=out_rstd)

    def _mlp_first(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, Any]:
        """The norm's rstd, and what the half makes of the normed input, which goes."""
        normed, rstd = self._norm(x, self.parts.mlp_norm)
        return rstd, self.mlp.first(normed, batch)

    def _mlp_backward(self, dz: torch.Tensor, kept: MlpKept, batch: Tokens) -> torch.Tensor:
        parts, norm = self.parts, self.parts.mlp_norm
        inner = self._out_norm_backward(dz, kept.unnormed, kept.out_rstd, parts.mlp_out_norm)
        dn = self.mlp.backward(inner, kept.inner, lambda: self._norm(kept.x, norm)[0], batch)
        return self.kernels.rms_norm_backward(dn, kept.x, kept.rstd, norm.weight, offset=norm.offset, into=dz)

    def _norm(self, x: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kernels.rms_norm(x, norm.weight, norm.epsilon, offset=norm.offset)

    def _head_norm(self, x: torch.Tensor, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of each head by itself, or of all at once; x [T, heads, size]."""
        y, rstd = self._norm(x.reshape(-1, norm.weight.shape[0]), norm)
        return y.view(x.shape), rstd

    def _head_norm_backward(self, dy: torch.Tensor, x: torch.Tensor, rstd: Any, norm: Norm) -> torch.Tensor:
        size = norm.weight.shape[0]
        flat = dy.reshape(-1, size)
        return self.kernels.rms_norm_backward(flat, x.reshape(-1, size), rstd, norm.weight, offset=norm.offset).view(
            x.shape
        )

    def _scaled(self, y: torch.Tensor) -> torch.Tensor:
        """What a half adds to the residual, in the storage of y."""
        return y if self.parts.residual_scale == 1.0 else y.mul_(self.parts.residual_scale)

    def _out_norm_backward(self, dy: torch.Tensor, x: Any, rstd: Any, norm: Norm | None) -> torch.Tensor:
        """Through the scale and the norm after a half, where there are; dy itself goes on along the residual."""
        if self.parts.residual_scale != 1.0:
            dy = dy * self.parts.residual_scale
        if norm is None:
            return dy
        return self.kernels.rms_norm_backward(dy, x, rstd, norm.weight, offset=norm.offset)

    def _rotate(self, heads: torch.Tensor, batch: Tokens, *, sign: int) -> None:
        if self.table is not None:
            cos, sin = self.table
            is_interleaved = self.parts.is_interleaved
            self.kernels.rope_(heads, cos, sin, batch.positions, sign=sign, is_interleaved=is_interleaved)

    def _split(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of the projections' joined output: q and k together [T, H + K, D], q [T, H, D], k and v [T, K, D]."""
        queries, keys, size = self.parts.heads
        heads = joined.view(joined.shape[0], queries + 2 * keys, size)
        q, k, v = heads.split([queries, keys, keys], dim=1)
        return heads[:, : queries + keys], q, k, v


def first_adapter(layer: int, group: int) -> int:
    """The number of the first adapter of one of a layer's groups: what its dropout is drawn by."""
    beyond, group = divmod(group, GROUPS)
    return ADAPTERS_A_GROUP * (GROUPS * layer + group) + ADAPTERS_OF_FIRST * beyond
