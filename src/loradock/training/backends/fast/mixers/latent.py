"""Attention over latents: queries, keys and values of latents that are normed, with a turned part beside a still one.

Keys share their turned part: all heads' gradients to it are summed. Values that are narrower than keys are filled up
with zeros for attention's kernels, which know one size. What is kept is what the linear layers gave, turned in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from loradock.training.backends.fast import shared_prompts
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import LatentParts, Tables
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentKept:
    """What backward needs. `joined` [T, ..] of the inputs, `q` [T, H, size] as attention takes it, `still` [T, H, ..]
    of keys, with the values behind them, `out` [T, H, values]; the `h` are what adapters made of each group's input.
    """

    joined: torch.Tensor
    q: torch.Tensor
    still: torch.Tensor
    out: torch.Tensor
    attention: Any
    query_rstd: torch.Tensor | None
    latent_rstd: torch.Tensor
    h_inputs: torch.Tensor | None
    h_queries: torch.Tensor | None
    h_keys_values: torch.Tensor | None
    h_output: torch.Tensor | None


class Latent:
    """See `base.Mixer`. `groups`: linear layers in the order of `parts.groups()`."""

    def __init__(
        self,
        parts: LatentParts,
        groups: Sequence[LinearGroup],
        *,
        tables: Tables,
        attention: Attention,
        kernels: Kernels,
    ) -> None:
        self.parts = parts
        self.inputs, *queries, self.keys_values, self.output = groups
        self.queries = queries[0] if queries else None
        self.table = tables[""]
        self.attention = attention
        self.kernels = kernels

    def forward(self, normed: torch.Tensor, batch: Tokens, *, is_last: bool = False) -> tuple[torch.Tensor, LatentKept]:
        """See `base.Mixer`."""
        heads = self.parts.heads
        joined, h_inputs = self.inputs.forward(normed, keys=batch.keys)
        first, latent, turned = self._split(joined)
        self._rotate(turned, batch, sign=1)
        query_rstd, h_queries = None, None
        if self.queries is not None:
            first, query_rstd = self._norm(first, self.parts.query_norm)
            first, h_queries = self.queries.forward(first, keys=batch.keys)
        q = first.reshape(len(first), heads.count, heads.size)
        self._rotate(q[..., heads.still :], batch, sign=1)
        self._scale(q, batch)
        latent, latent_rstd = self._norm(latent, self.parts.latent_norm)
        still, h_keys_values = self.keys_values.forward(latent, keys=batch.keys)
        still = still.view(len(still), heads.count, -1)
        out, saved = shared_prompts.forward(
            self.attention, q, self._keys(still, turned), self._values(still), batch, self.parts.rule
        )
        out = out[..., : heads.values].contiguous()
        y, h_output = self.output.forward(out.flatten(1), keys=batch.keys)
        kept = LatentKept(
            joined=joined,
            q=q,
            still=still,
            out=out,
            attention=saved,
            query_rstd=query_rstd,
            latent_rstd=latent_rstd,
            h_inputs=h_inputs,
            h_queries=h_queries,
            h_keys_values=h_keys_values,
            h_output=h_output,
        )
        return y, kept

    def backward(
        self,
        dy: torch.Tensor,
        saved: LatentKept,
        normed: Callable[[], torch.Tensor],
        batch: Tokens,
        *,
        is_lowest: bool,
    ) -> torch.Tensor | None:
        """See `base.Mixer`."""
        heads, (_, latent, turned) = self.parts.heads, self._split(saved.joined)
        dh = self.output.backward_b(dy, saved.h_output)
        dout = self.output.backward_input(dy, dh, keys=batch.keys).view_as(saved.out)
        self.output.backward_a(dh, saved.out.flatten(1), keys=batch.keys)
        dq, dk, dv = shared_prompts.backward(
            self.attention,
            self._filled(dout),
            saved.q,
            self._keys(saved.still, turned),
            self._values(saved.still),
            self._filled(saved.out),
            saved.attention,
            batch,
            self.parts.rule,
        )
        dturned = dk[..., heads.still :].sum(1, keepdim=True)
        self._rotate(dturned, batch, sign=-1)
        dstill = torch.cat([dk[..., : heads.still], dv[..., : heads.values]], dim=-1).flatten(1)
        del dk, dv
        dlatent = self._made_backward(
            self.keys_values, dstill, saved.h_keys_values, latent, saved.latent_rstd, self.parts.latent_norm, batch
        )
        dfirst = self._queries_backward(dq, saved, batch)
        djoined = torch.cat([dfirst, dlatent, dturned.flatten(1)], dim=1)
        dh = self.inputs.backward_b(djoined, saved.h_inputs)
        if dh is not None:
            self.inputs.backward_a(dh, normed(), keys=batch.keys)
        return None if is_lowest else self.inputs.backward_input(djoined, dh, keys=batch.keys)

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mixer`."""
        queries = () if self.queries is None else (self.queries,)
        return self.inputs, *queries, self.keys_values, self.output

    def _queries_backward(self, dq: torch.Tensor, saved: LatentKept, batch: Tokens) -> torch.Tensor:
        """The gradient to what the first of the inputs gave, [T, queries or their latent]."""
        self._scale(dq, batch)
        self._rotate(dq[..., self.parts.heads.still :], batch, sign=-1)
        dq = dq.flatten(1)
        if self.queries is None:
            return dq
        latent, rstd, norm = self._split(saved.joined)[0], saved.query_rstd, self.parts.query_norm
        return self._made_backward(self.queries, dq, saved.h_queries, latent, rstd, norm, batch)

    def _made_backward(
        self, group: LinearGroup, dy: torch.Tensor, h: Any, x: torch.Tensor, rstd: Any, norm: Any, batch: Tokens
    ) -> torch.Tensor:
        """The gradient to a latent x through its norm, and what is made of it."""
        dh = group.backward_b(dy, h)
        dn = group.backward_input(dy, dh, keys=batch.keys)
        if dh is not None:
            group.backward_a(dh, self._norm(x, norm)[0], keys=batch.keys)
        return self.kernels.rms_norm_backward(dn, x.contiguous(), rstd, norm.weight, offset=norm.offset)

    def _split(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views: queries or their latent [T, ..], the latent of keys and values [T, ..], the turned part [T, 1, ..]."""
        turned, latent = self.parts.heads.turned, self.parts.latent_norm.weight.shape[0]
        first = joined.shape[1] - latent - turned
        return joined[:, :first], joined[:, first : first + latent], joined[:, None, first + latent :]

    def _keys(self, still: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
        heads = self.parts.heads
        return torch.cat([still[..., : heads.still], turned.expand(-1, heads.count, -1)], dim=-1)

    def _values(self, still: torch.Tensor) -> torch.Tensor:
        return self._filled(still[..., self.parts.heads.still :])

    def _filled(self, values: torch.Tensor) -> torch.Tensor:
        """[T, H, values] -> [T, H, size]."""
        missing = self.parts.heads.size - self.parts.heads.values
        return pad(values, (0, missing)) if missing else values

    def _norm(self, x: torch.Tensor, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kernels.rms_norm(x.contiguous(), norm.weight, norm.epsilon, offset=norm.offset)

    def _rotate(self, heads: torch.Tensor, batch: Tokens, *, sign: int) -> None:
        cos, sin = self.table
        is_interleaved = self.parts.is_interleaved
        self.kernels.rope_(heads, cos, sin, batch.positions, sign=sign, is_interleaved=is_interleaved)

    def _scale(self, queries: torch.Tensor, batch: Tokens) -> None:
        """In place; [T, H, size]."""
        scale = self.parts.query_scale
        if scale is not None:
            queries.mul_(scale.index_select(0, batch.positions).to(queries.dtype)[:, None, None])
