"""A recurrent layer: its linear layers written out, and between them transformers' own kernels, document by document.

What the kernels keep for their backward is many times what the layer's inputs are (docs/hybrids.md), so it is made once
more for each layer's backward. Documents of about one length are computed together, the shorter ones filled up at their
end, which nothing before it sees; so many at most that what is kept is bounded, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from loradock.plan.memory.recurrent import TOGETHER_TOKENS, in_chunks
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.batch import Tokens
from loradock.training.backends.fast.families.parts import RecurrentParts
from loradock.training.backends.fast.linear import LinearGroup

MOST_PADDING = 0.25
"""Of the tokens that are computed together, what may be filled up: more documents at once, fewer launches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Together:
    """Documents that are computed together: their tokens int64 [t], and the places of these in [documents, length]."""

    tokens: torch.Tensor
    places: torch.Tensor
    shape: tuple[int, int]

    def laid(self, joined: torch.Tensor) -> torch.Tensor:
        """[T, size] -> [documents, length, size]; places without a token are zero."""
        documents, length = self.shape
        room = joined.new_zeros(documents * length, joined.shape[1])
        return room.index_copy_(0, self.places, joined.index_select(0, self.tokens)).view(documents, length, -1)


Computed = tuple[Together, torch.Tensor, torch.Tensor]
"""Some documents, their inputs, and their outputs; autograd has the graph between where backward comes next."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecurrentKept:
    """What backward needs: the inputs' joined outputs [T, sum of out], and what was computed, where that is kept."""

    h: torch.Tensor | None
    joined: torch.Tensor
    h_output: torch.Tensor | None
    computed: list[Computed]


class Recurrent:
    """See `base.Mixer`."""

    def __init__(self, parts: RecurrentParts, inputs: LinearGroup, output: LinearGroup) -> None:
        self.inner: Callable[[torch.Tensor], torch.Tensor] = parts.inner
        self.inputs, self.output, self.chunk = inputs, output, parts.chunk

    def forward(
        self, normed: torch.Tensor, batch: Tokens, *, is_last: bool = False
    ) -> tuple[torch.Tensor, RecurrentKept]:
        """See `base.Mixer`."""
        joined, h = self.inputs.forward(normed, keys=batch.keys)
        computed: list[Computed] = []
        out: torch.Tensor | None = None
        all_groups = list(groups(batch.documents, device=joined.device, chunk=self.chunk))
        is_kept = is_last and sum(map(self._slots, all_groups)) <= TOGETHER_TOKENS
        for part in self._computed(joined, batch, all_groups, is_learned=is_kept):
            out = put(part, part[2].detach(), out, batch)
            if is_kept:
                computed.append(part)
        y, h_output = self.output.forward(folded(out, batch), keys=batch.keys)
        return y, RecurrentKept(h=h, joined=joined, h_output=h_output, computed=computed)

    def backward(
        self,
        dy: torch.Tensor,
        saved: RecurrentKept,
        normed: Callable[[], torch.Tensor],
        batch: Tokens,
        *,
        is_lowest: bool,
    ) -> torch.Tensor | None:
        """See `base.Mixer`."""
        dh = self.output.backward_b(dy, saved.h_output)
        out, djoined = self._inner_backward(self.output.backward_input(dy, dh, keys=batch.keys), saved, batch)
        self.output.backward_a(dh, out, keys=batch.keys)
        dh = self.inputs.backward_b(djoined, saved.h)
        if dh is not None:
            self.inputs.backward_a(dh, normed(), keys=batch.keys)
        return None if is_lowest else self.inputs.backward_input(djoined, dh, keys=batch.keys)

    def linears(self) -> tuple[LinearGroup, ...]:
        """See `base.Mixer`."""
        return self.inputs, self.output

    def _slots(self, together: Together) -> int:
        """Tokens that the kernels compute, those that fill chunks up included."""
        documents, length = together.shape
        return documents * in_chunks(length, chunk=self.chunk)

    def _computed(
        self, joined: torch.Tensor, batch: Tokens, all_groups: Iterable[Together], *, is_learned: bool
    ) -> Iterator[Computed]:
        """Of all documents, one group after the other."""
        values_of_all = joined.index_select(0, batch.unfold) if batch.unfold.numel() else joined
        for together in all_groups:
            inputs = together.laid(values_of_all).requires_grad_(is_learned)
            with torch.set_grad_enabled(is_learned):
                outputs = self.inner(inputs)
            yield together, inputs, outputs

    def _inner_backward(
        self, dout: torch.Tensor, saved: RecurrentKept, batch: Tokens
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the output's product read [T, in], and the gradient to the inputs' joined outputs [T, sum of out]."""
        if batch.fold.numel():
            dout = dout.new_zeros(batch.documents.bounds[-1], dout.shape[1]).index_copy_(0, batch.fold, dout)
        out: torch.Tensor | None = None
        gradient: torch.Tensor | None = None
        all_groups = groups(batch.documents, device=dout.device, chunk=self.chunk)
        for part in saved.computed or self._computed(saved.joined, batch, all_groups, is_learned=True):
            together, inputs, outputs = part
            out = put(part, outputs.detach(), out, batch)
            (of_part,) = torch.autograd.grad(outputs, inputs, together.laid(dout).view_as(outputs))
            gradient = put(part, of_part, gradient, batch)
        return folded(out, batch), folded_sum(gradient, batch)


def put(part: Computed, values: torch.Tensor, values_of_all: torch.Tensor | None, batch: Tokens) -> torch.Tensor:
    """Some documents' values [documents, length, size] written to those of all, [tokens of documents, size]."""
    together = part[0]
    if values_of_all is None:
        values_of_all = values.new_empty(batch.documents.bounds[-1], values.shape[-1])
    return values_of_all.index_copy_(0, together.tokens, values.flatten(0, 1).index_select(0, together.places))


def folded(values_of_all: torch.Tensor | None, batch: Tokens) -> torch.Tensor:
    """Of each token what it has in the first of its documents, as in all others."""
    if values_of_all is None:
        raise ValueError("a batch without documents")
    return values_of_all.index_select(0, batch.fold) if batch.fold.numel() else values_of_all


def folded_sum(values_of_all: torch.Tensor | None, batch: Tokens) -> torch.Tensor:
    """Of each token the sum over its documents."""
    first = folded(values_of_all, batch)
    if values_of_all is None or not batch.fold.numel():
        return first
    return first.index_add_(0, batch.unfold.index_select(0, batch.again), values_of_all.index_select(0, batch.again))


def groups(documents: Documents, *, device: torch.device, chunk: int) -> Iterator[Together]:
    """The documents in groups of about one length, the longest first, of `TOGETHER_TOKENS` in chunks or of one."""
    spans = sorted(documents.spans(), key=lambda span: span[0] - span[1])
    while spans:
        length, tokens, count = spans[0][1] - spans[0][0], 0, 0
        most = max(1, TOGETHER_TOKENS // in_chunks(length, chunk=chunk))
        for start, end in spans[:most]:
            if tokens + end - start < (1.0 - MOST_PADDING) * length * (count + 1):
                break
            tokens, count = tokens + end - start, count + 1
        group, spans = spans[:count], spans[count:]
        yield Together(
            tokens=torch.cat([torch.arange(*span) for span in group]).to(device, non_blocking=True),
            places=torch.cat(
                [torch.arange(index * length, index * length + end - start) for index, (start, end) in enumerate(group)]
            ).to(device, non_blocking=True),
            shape=(count, length),
        )
