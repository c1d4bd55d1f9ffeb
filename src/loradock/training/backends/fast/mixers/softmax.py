"""Attention: queries, keys and values, their norms and turns, a backend of `attention/`, and the output's product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from loradock.training.backends.fast import shared_prompts
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import AttentionParts, Norm, Table, Tables
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxKept:
    """What backward needs. q, k and v [T, heads, size] are before their norm, else after rotation; `gate` as q."""

    h: torch.Tensor | None
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gate: torch.Tensor | None
    q_rstd: torch.Tensor | None
    k_rstd: torch.Tensor | None
    v_rstd: torch.Tensor | None
    out: torch.Tensor
    attention: Any
    h_output: torch.Tensor | None


class Softmax:
    """See `base.Mixer`. `tables`: see `ModelParts`."""

    def __init__(
        self,
        parts: AttentionParts,
        qkv: LinearGroup,
        output: LinearGroup,
        *,
        tables: Tables,
        attention: Attention,
        kernels: Kernels,
    ) -> None:
        self.parts = parts
        self.qkv, self.output = qkv, output
        self.table = None if parts.rotary is None else tables[parts.rotary]
        self.query_table = self.table if parts.query_rotary is None else tables[parts.query_rotary]
        self.attention = attention
        self.kernels = kernels

    def forward(
        self, normed: torch.Tensor, batch: Tokens, *, is_last: bool = False
    ) -> tuple[torch.Tensor, SoftmaxKept]:
        """See `base.Mixer`."""
        parts = self.parts
        joined, h = self.qkv.forward(normed, keys=batch.keys)
        both, q, k, v, gate = self._split(joined)
        if self._turns_first:
            self._rotate_both(both, batch, sign=1)
        raw_q, raw_k, raw_v = q, k, v
        (q, k, v), (q_rstd, k_rstd, v_rstd) = self._ready(q, k, v, batch)
        if parts.leaves is not None:
            batch.carried.keys_values[parts.leaves] = k, v
        out, saved = shared_prompts.forward(self.attention, q, k, v, batch, parts.rule)
        y, h_output = self.output.forward(gated(out, gate), keys=batch.keys)
        kept = SoftmaxKept(
            h=h,
            q=raw_q,
            k=raw_k,
            v=raw_v,
            gate=gate,
            q_rstd=q_rstd,
            k_rstd=k_rstd,
            v_rstd=v_rstd,
            out=out,
            attention=saved,
            h_output=h_output,
        )
        return y, kept

    def backward(
        self,
        dy: torch.Tensor,
        saved: SoftmaxKept,
        normed: Callable[[], torch.Tensor],
        batch: Tokens,
        *,
        is_lowest: bool,
    ) -> torch.Tensor | None:
        """See `base.Mixer`."""
        parts = self.parts
        dh = self.output.backward_b(dy, saved.h_output)
        dout = self.output.backward_input(dy, dh, keys=batch.keys).view_as(saved.out)
        self.output.backward_a(dh, gated(saved.out, saved.gate), keys=batch.keys)
        dout, dgate = gated_backward(dout, saved.out, saved.gate)
        (q, k, v), _ = self._ready(saved.q, saved.k, saved.v, batch)
        dq, dk, dv = shared_prompts.backward(
            self.attention, dout, q, k, v, saved.out, saved.attention, batch, parts.rule
        )
        if name := parts.reads or parts.leaves:
            dk, dv = batch.carried.add(name, dk, dv)
        joined = self._joined_backward(dq, dk, dv, dgate, saved, batch).flatten(1)
        dh = self.qkv.backward_b(joined, saved.h)
        if dh is not None:
            self.qkv.backward_a(dh, normed(), keys=batch.keys)
        return None if is_lowest else self.qkv.backward_input(joined, dh, keys=batch.keys)

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mixer`."""
        return self.qkv, self.output

    def _ready(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Tokens
    ) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor | None, ...]]:
        """Queries, keys and values as attention takes them, of what was kept of them, and what their norms measured."""
        parts = self.parts
        q, q_rstd = self._head_norm(q, parts.query_norm)
        if not self._turns_first:
            self._rotate(q, self.query_table, batch, sign=1)
        if parts.reads is not None:
            return (q, *batch.carried.keys_values[parts.reads]), (q_rstd, None, None)
        k, k_rstd = self._head_norm(k, parts.key_norm)
        v, v_rstd = self._head_norm(v, parts.value_norm)
        if not self._turns_first:
            self._rotate(k, self.table, batch, sign=1)
        return (q, k, v), (q_rstd, k_rstd, v_rstd)

    def _joined_backward(
        self,
        dq: torch.Tensor,
        dk: torch.Tensor,
        dv: torch.Tensor,
        dgate: torch.Tensor | None,
        saved: SoftmaxKept,
        batch: Tokens,
    ) -> torch.Tensor:
        """The gradient to the projections' joined output [T, heads, D], through turns and norms."""
        parts, turns_after = self.parts, not self._turns_first
        if turns_after:
            self._rotate(dq, self.query_table, batch, sign=-1)
        dq = self._head_norm_backward(dq, saved.q, saved.q_rstd, parts.query_norm)
        if parts.reads is not None:
            return dq
        if turns_after:
            self._rotate(dk, self.table, batch, sign=-1)
        dk = self._head_norm_backward(dk, saved.k, saved.k_rstd, parts.key_norm)
        dv = self._head_norm_backward(dv, saved.v, saved.v_rstd, parts.value_norm)
        if dgate is not None:
            dq = torch.stack([dq, dgate], dim=2).flatten(1, 2)
        joined = torch.cat([dq, dk, dv] if parts.has_values else [dq, dk.add_(dv)], dim=1)
        if not turns_after:
            self._rotate_both(joined[:, : dq.shape[1] + dk.shape[1]], batch, sign=-1)
        return joined

    @property
    def _turns_first(self) -> bool:
        """Whether heads turn where the projections left them, which takes no copy, before a norm if there is one."""
        return self.parts.turns_first or self.parts.query_norm is None

    def _head_norm(self, x: torch.Tensor, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The norm of each head by itself, or of all at once; x [T, heads, size], itself without a norm."""
        if norm is None:
            return x, None
        y, rstd = self.kernels.rms_norm(
            x.reshape(-1, norm.weight.shape[0]), norm.weight, norm.epsilon, offset=norm.offset
        )
        return y.view(x.shape), rstd

    def _head_norm_backward(self, dy: torch.Tensor, x: torch.Tensor, rstd: Any, norm: Norm | None) -> torch.Tensor:
        if norm is None:
            return dy
        size = norm.weight.shape[0]
        flat = dy.reshape(-1, size)
        return self.kernels.rms_norm_backward(flat, x.reshape(-1, size), rstd, norm.weight, offset=norm.offset).view(
            x.shape
        )

    def _rotate_both(self, both: torch.Tensor, batch: Tokens, *, sign: int) -> None:
        """Queries and keys [T, H + K, D] in place, at once where they turn by one table."""
        queries = self.parts.heads[0]
        if self.parts.turns_keys and self.query_table is self.table:
            self._rotate(both, self.table, batch, sign=sign)
            return
        self._rotate(both[:, :queries], self.query_table, batch, sign=sign)
        if self.parts.turns_keys:
            self._rotate(both[:, queries:], self.table, batch, sign=sign)

    def _rotate(self, heads: torch.Tensor, table: Table | None, batch: Tokens, *, sign: int) -> None:
        if table is not None:
            cos, sin = table
            is_interleaved = self.parts.is_interleaved
            self.kernels.rope_(heads, cos, sin, batch.positions, sign=sign, is_interleaved=is_interleaved)

    def _split(
        self, joined: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Views of the projections' joined output: q and k together [T, H + K, D], q [T, H, D], k, v [T, K, D], gate.

        With a gate, `both` has it between the queries, and is not to be used: such heads have norms. Keys and values
        have no heads where those of another layer are read.
        """
        queries, keys, size = self.parts.heads
        first = queries * (1 + self.parts.is_gated)
        heads = joined.view(joined.shape[0], -1, size)
        q, k = heads[:, :first], heads[:, first : first + keys]
        v = heads[:, first + keys :] if self.parts.has_values else k
        both = heads[:, : first + keys]
        return (both, q[:, ::2], k, v, q[:, 1::2]) if self.parts.is_gated else (both, q, k, v, None)


def gated(out: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """What the output's product reads, [T, H D], of attention's output and its gate, [T, H, D] each."""
    return (out if gate is None else out * gate.sigmoid()).flatten(1)


def gated_backward(
    dgated: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradients to attention's output and to its gate, [T, H, D] each."""
    if gate is None:
        return dgated, None
    share = gate.sigmoid()
    return dgated * share, dgated * out * share * (1.0 - share)
