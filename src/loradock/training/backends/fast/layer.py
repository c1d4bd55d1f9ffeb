"""One decoder layer, forward and backward: what each half keeps between the two is all in its `...Kept`.

For a token of hidden size h, with q, k, v the projected sizes and I the MLP's, a layer keeps 2h (the inputs of both
halves), q + k + v, q (attention's output) and 2I elements of the compute dtype; norms and the gate's product are
computed again in backward. A checkpointed layer keeps h, its input. Attention and a recurrence are implementations of
one interface (`mixers`), a gated MLP and a mixture of experts of another (`mlp`); a recurrence keeps what its linear
layers give, a mixture 2I for each expert of a token, shared ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.attention.base import Attention
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import (
    AttentionParts,
    DenseParts,
    LatentParts,
    LayerParts,
    MixtureParts,
    Norm,
    RecurrentParts,
    Tables,
)
from loradock.training.backends.fast.kernels import Kernels
from loradock.training.backends.fast.linear import LinearGroup
from loradock.training.backends.fast.mixers.base import Mixer
from loradock.training.backends.fast.mixers.latent import Latent
from loradock.training.backends.fast.mixers.recurrent import Recurrent
from loradock.training.backends.fast.mixers.softmax import Softmax
from loradock.training.backends.fast.mlp.base import Frozen, Mlp
from loradock.training.backends.fast.mlp.beside import Beside
from loradock.training.backends.fast.mlp.dense import Dense
from loradock.training.backends.fast.mlp.mixture import Mixture
from loradock.training.backends.fast.mlp.router import Balance
from loradock.training.backends.fast.mlp.token_input import GatedInput
from loradock.training.backends.fast.weights import DenseRoom

Attending = Softmax | Latent
"""What mixes tokens by attention."""
GROUPS, ADAPTERS_A_GROUP = 4, 16
"""A layer's groups of linear layers, and numbers set aside for the adapters of one."""
ADAPTERS_OF_FIRST = 8
"""Of these, what each group leaves to one beyond the four: the gate of a shared expert, what reads a latent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HalfKept:
    """What a half's backward needs: its input [T, hidden], what its mixer or MLP keeps, and what its norms read."""

    x: torch.Tensor
    rstd: torch.Tensor | None
    inner: Any
    unnormed: torch.Tensor | None
    out_rstd: torch.Tensor | None


LayerKept = tuple[HalfKept, HalfKept, HalfKept | None]
"""Of both halves, and of what follows them."""


class Layer:
    """One decoder layer over flat batches."""

    def __init__(
        self,
        parts: LayerParts,
        *,
        adapters: FlatAdapters,
        room: DenseRoom,
        balance: Balance,
        tables: Tables,
        attention_of: Callable[[int], Attention],
        kernels: Kernels,
        index: int,
        mixture: int,
        is_lowest: bool,
    ) -> None:
        """`index`: of the layer, `mixture`: of those that have experts. `tables`: see `ModelParts`.

        `is_lowest`: nothing is trained below, so that the gradient to its input is not asked for.
        """
        self.parts = parts
        groups = [
            LinearGroup(modules, adapters, room, kernels=kernels, first=first_adapter(index, group))
            for group, modules in enumerate(parts.groups())
        ]
        of_mixer = groups[: len(parts.mixer.groups())]
        of_mlp = groups[len(of_mixer) :]
        self.gated_input: GatedInput | None = None
        if parts.gated_input is not None:
            *of_mlp, gate, last = of_mlp
            activation = parts.gated_input.activation
            self.gated_input = GatedInput(gate, last, activation=activation, kernels=kernels, index=index)
        self.mixer = mixer_of(parts.mixer, of_mixer, tables=tables, attention_of=attention_of, kernels=kernels)
        self.mlp = mlp_of(parts.mlp, of_mlp, adapters, room, balance, kernels=kernels, index=mixture)
        self.kernels = kernels
        self.is_lowest = is_lowest

    def forward(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, LayerKept]:
        """x [T, hidden] -> [T, hidden], and what backward needs."""
        y, mixer = self._mixer_forward(x, batch)
        z, mlp = self._mlp_forward(y, batch)
        z, last = self._last_forward(z, batch)
        return (z if self.parts.scale == 1.0 else z.mul_(self.parts.scale)), (mixer, mlp, last)

    def recompute(self, x: torch.Tensor, batch: Tokens) -> LayerKept:
        """What backward needs, from x [T, hidden] again; the last product, which it does not read, is left out."""
        y, mixer = self._mixer_forward(x, batch, is_last=True)
        if self.parts.mlp_out_norm is not None:
            z, mlp = self._mlp_forward(y, batch, is_again=True)
            return mixer, mlp, self._last_forward(z, batch)[1]
        rstd, halfway = self._mlp_first(y, batch)
        inner = self.mlp.recomputed(halfway, batch)
        return mixer, HalfKept(x=y, rstd=rstd, inner=inner, unnormed=None, out_rstd=None), None

    def backward(self, dz: torch.Tensor, kept: LayerKept, batch: Tokens) -> torch.Tensor:
        """The gradient to the layer's input, in the storage of `dz` [T, hidden]; its adapters' into the flat buffer."""
        mixer, mlp, last = kept
        if self.parts.scale != 1.0:
            dz = dz.mul_(self.parts.scale)
        if self.gated_input is not None and last is not None:
            inner = self._out_norm_backward(dz, last.unnormed, last.out_rstd, self.parts.gated_input_norm)
            dz = dz.add_(self.gated_input.backward(inner, last.inner, lambda: last.x, batch))
        return self._mixer_backward(self._mlp_backward(dz, mlp, batch), mixer, batch)

    def attend_by(self, attention: Attention | None) -> Attention | None:
        """From now on attend by this backend; the one before. Both are None where the layer has no attention."""
        if not isinstance(self.mixer, Attending) or attention is None:
            return None
        before, self.mixer.attention = self.mixer.attention, attention
        return before

    @property
    def is_static(self) -> bool:
        """Whether its launches follow from the shape of a batch alone."""
        return isinstance(self.mixer, Attending) and self.mixer.attention.is_static

    def groups(self) -> tuple[LinearGroup, ...]:
        """All linear layers."""
        return *self.mixer.linears(), *self.mlp.linears(), *self._last_linears()

    def frozen(self) -> tuple[Frozen, ...]:
        """All frozen matrices that may have adapters."""
        return *self.mixer.linears(), *self.mlp.frozen(), *self._last_linears()

    def _last_linears(self) -> tuple[LinearGroup, ...]:
        return () if self.gated_input is None else self.gated_input.linears()

    def _mixer_forward(self, x: torch.Tensor, batch: Tokens, *, is_last: bool = False) -> tuple[torch.Tensor, HalfKept]:
        normed, rstd = self._norm(x, self.parts.mixer_norm)
        y, inner = self.mixer.forward(normed, batch, is_last=is_last)
        return self._added(y, x, rstd=rstd, inner=inner, norm=self.parts.mixer_out_norm)

    def _mixer_backward(self, dy: torch.Tensor, kept: HalfKept, batch: Tokens) -> torch.Tensor:
        parts, norm = self.parts, self.parts.mixer_norm
        inner = self._out_norm_backward(dy, kept.unnormed, kept.out_rstd, parts.mixer_out_norm)
        dn = self.mixer.backward(
            inner, kept.inner, lambda: self._norm(kept.x, norm)[0], batch, is_lowest=self.is_lowest
        )
        if dn is None:
            return dy
        return self._norm_backward(dn, kept, norm, into=dy)

    def _mlp_forward(self, x: torch.Tensor, batch: Tokens, *, is_again: bool = False) -> tuple[torch.Tensor, HalfKept]:
        rstd, halfway = self._mlp_first(x, batch)
        y, inner = self.mlp.second(halfway, batch, is_again=is_again)
        del halfway
        return self._added(y, x, rstd=rstd, inner=inner, norm=self.parts.mlp_out_norm)

    def _mlp_first(self, x: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor | None, Any]:
        """The norm's rstd, and what the half makes of the normed input, which goes."""
        normed, rstd = self._norm(x, self.parts.mlp_norm)
        return rstd, self.mlp.first(normed, batch)

    def _mlp_backward(self, dz: torch.Tensor, kept: HalfKept, batch: Tokens) -> torch.Tensor:
        parts, norm = self.parts, self.parts.mlp_norm
        inner = self._out_norm_backward(dz, kept.unnormed, kept.out_rstd, parts.mlp_out_norm)
        dn = self.mlp.backward(inner, kept.inner, lambda: self._norm(kept.x, norm)[0], batch)
        return self._norm_backward(dn, kept, norm, into=dz)

    def _last_forward(self, z: torch.Tensor, batch: Tokens) -> tuple[torch.Tensor, HalfKept | None]:
        """What follows both halves; z [T, hidden] itself where nothing does."""
        if self.gated_input is None:
            return z, None
        y, inner = self.gated_input.forward(z, batch)
        return self._added(y, z, rstd=None, inner=inner, norm=self.parts.gated_input_norm)

    def _norm(self, x: torch.Tensor, norm: Norm | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """x itself where there is no norm."""
        if norm is None:
            return x, None
        return self.kernels.rms_norm(x, norm.weight, norm.epsilon, offset=norm.offset)

    def _norm_backward(
        self, dn: torch.Tensor, kept: HalfKept, norm: Norm | None, *, into: torch.Tensor
    ) -> torch.Tensor:
        """The gradient to a half's input through the norm before it, added to that along the residual."""
        if norm is None or kept.rstd is None:
            return into.add_(dn)
        return self.kernels.rms_norm_backward(dn, kept.x, kept.rstd, norm.weight, offset=norm.offset, into=into)

    def _added(
        self, y: torch.Tensor, x: torch.Tensor, *, rstd: torch.Tensor | None, inner: Any, norm: Norm | None
    ) -> tuple[torch.Tensor, HalfKept]:
        """What a half gives, after its norm and times its scale, added to its input x, in the storage of y."""
        unnormed = None if norm is None else y
        y, out_rstd = self._norm(y, norm)
        scale = self.parts.residual_scale
        total = (y if scale == 1.0 else y.mul_(scale)).add_(x)
        return total, HalfKept(x=x, rstd=rstd, inner=inner, unnormed=unnormed, out_rstd=out_rstd)

    def _out_norm_backward(self, dy: torch.Tensor, x: Any, rstd: Any, norm: Norm | None) -> torch.Tensor:
        """Through the scale and the norm after a half, where there are; dy itself goes on along the residual."""
        if self.parts.residual_scale != 1.0:
            dy = dy * self.parts.residual_scale
        if norm is None:
            return dy
        return self.kernels.rms_norm_backward(dy, x, rstd, norm.weight, offset=norm.offset)


def mixer_of(
    parts: AttentionParts | LatentParts | RecurrentParts,
    groups: Sequence[LinearGroup],
    *,
    tables: Tables,
    attention_of: Callable[[int], Attention],
    kernels: Kernels,
) -> Mixer:
    """A layer's first half; see `Layer` for what it is given."""
    if isinstance(parts, LatentParts):
        attention = attention_of(parts.heads.size)
        return Latent(parts, groups, tables=tables, attention=attention, kernels=kernels)
    inputs, output = groups
    if isinstance(parts, RecurrentParts):
        return Recurrent(parts, inputs, output)
    attention = attention_of(parts.heads[2])
    return Softmax(parts, inputs, output, tables=tables, attention=attention, kernels=kernels)


def mlp_of(
    parts: DenseParts | MixtureParts,
    groups: Sequence[LinearGroup],
    adapters: FlatAdapters,
    room: DenseRoom,
    balance: Balance,
    *,
    kernels: Kernels,
    index: int,
) -> Mlp:
    """A layer's second half; see `Mixture` for what it is given."""
    if isinstance(parts, DenseParts):
        gate_up, down = groups
        return Dense(gate_up, down, activation=parts.activation, kernels=kernels)
    mixture = Mixture(parts, groups, adapters, room, balance, kernels=kernels, index=index)
    if parts.beside is None:
        return mixture
    gate_up, down = groups
    beside = Dense(gate_up, down, activation=parts.beside.dense.activation, kernels=kernels)
    return Beside(parts.beside, beside, mixture, kernels=kernels)


def first_adapter(layer: int, group: int) -> int:
    """The number of the first adapter of one of a layer's groups: what its dropout is drawn by."""
    beyond, group = divmod(group, GROUPS)
    return ADAPTERS_A_GROUP * (GROUPS * layer + group) + ADAPTERS_OF_FIRST * beyond
