"""Causal attention in float64, and the cases that implementations are tried on: plain, padded and packed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loradock.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    import torch

LENGTH = 48
PADDED = (LENGTH, 29)
PACKED = (21, 16, 11)
LONGEST_WINDOW = 13


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows of documents. `documents` are (row, first position, length); what lies outside of them is padding."""

    name: str
    rows: int
    documents: tuple[tuple[int, int, int], ...]
    window: int | None = None

    @property
    def is_plain(self) -> bool:
        """True where causality is all there is to the mask: every row is one document, and it sees all of it."""
        return self.window is None and all(length == LENGTH for _, _, length in self.documents)

    def allowed(self) -> torch.Tensor:
        """Which query sees which key, bool [rows, queries, keys]; padding sees what it would in a longer document."""
        import torch

        place = torch.arange(LENGTH)
        back = place[:, None] - place[None, :]
        visible = (back >= 0) & (back < (self.window or LENGTH))
        document = torch.zeros(self.rows, LENGTH, dtype=torch.long)
        for number, (row, first, length) in enumerate(self.documents, 1):
            document[row, first : first + length] = number
        is_same = (document[:, :, None] == document[:, None, :]) & (document[:, None, :] > 0)
        is_padding = document == 0
        return (is_same & visible) | (is_padding[:, :, None] & (place == 0))

    def real(self) -> torch.Tensor:
        """Positions that hold a document, bool [rows, length]."""
        import torch

        mask = torch.zeros(self.rows, LENGTH, dtype=torch.bool)
        for row, first, length in self.documents:
            mask[row, first : first + length] = True
        return mask


def cases(shape: AttentionShape) -> tuple[Case, ...]:
    """Plain, padded and packed rows, with a window short enough to matter where the model has one."""
    window = min(shape.window, LONGEST_WINDOW) if shape.window else None
    starts = [sum(PACKED[:number]) for number in range(len(PACKED))]
    return (
        Case(name="causal", rows=2, documents=tuple((row, 0, LENGTH) for row in range(2)), window=window),
        Case(name="padded", rows=2, documents=tuple((row, 0, n) for row, n in enumerate(PADDED)), window=window),
        Case(
            name="packed",
            rows=1,
            documents=tuple((0, first, n) for first, n in zip(starts, PACKED, strict=True)),
            window=window,
        ),
    )


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor, *, softcap: float | None = None
) -> torch.Tensor:
    """softmax(q k' / sqrt(size)) v for query [B, H, L, D], key and value [B, G, L, D], allowed [B, L, L].

    Heads share keys in order (H / G each). Written out with einsum, so that it shares no kernel with what it judges;
    float64 where its arguments are.
    """
    import torch

    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * query.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~allowed[:, None], -torch.inf)
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(dim=-1, keepdim=True), value)
