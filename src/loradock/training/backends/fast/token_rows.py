"""Rows of new tokens (`tokenizer.add_tokens`), in the place of those that the frozen embedding and head have.

The frozen matrices stay as they are and are not copied: the embedding's look-up takes the rows by a mask, and the head
computes their logits beside the others. PEFT copies both matrices for each pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from loradock.training.backends.fast.adapters import FlatAdapters


class RowParameter:
    """k trained rows as PEFT has them: `ids` int64 [k], `parameter` and `initial` [k, hidden], both on the device."""

    def __init__(self, adapter: Any) -> None:
        (name,) = adapter.active_adapters
        self.parameter: torch.nn.Parameter = adapter.trainable_tokens_delta[name]
        self.initial: torch.Tensor = adapter.trainable_tokens_original[name]
        self.ids = torch.tensor(adapter.token_indices[name], device=self.parameter.device)


def rows_of(module: Any) -> RowParameter | None:
    """The rows that are trained of an embedding or a head; a tied head has the embedding's parameter."""
    adapter = getattr(module, "token_adapter", None)
    return None if adapter is None else RowParameter(adapter)


def bare(module: Any) -> Any:
    """An embedding or a head without PEFT's wrapper, whose `weight` is a copy with the rows in it."""
    adapter = getattr(module, "token_adapter", None)
    return module if adapter is None else adapter.base_layer


class TokenRows:
    """The rows at one end of the model: values from the adapters' working copy, gradients into their buffer."""

    def __init__(self, rows: RowParameter, adapters: FlatAdapters) -> None:
        self.ids, self.parameter, self.adapters = rows.ids, rows.parameter, adapters

    @property
    def values(self) -> torch.Tensor:
        """[k, hidden] in the compute dtype."""
        return self._view(self.adapters.working)

    def look_up(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """States x [T, hidden] of tokens `ids` [T], where they are new ones in the dtype of these rows."""
        is_row = ids[:, None] == self.ids
        return torch.where(is_row.any(1, keepdim=True), self.values.index_select(0, is_row.int().argmax(1)), x)

    def look_up_backward(self, dx: torch.Tensor, ids: torch.Tensor, *, scale: float) -> None:
        """Add the gradient from that of the states. A product, since sums by index have no order on a GPU."""
        is_row = (self.ids[:, None] == ids).to(dx.dtype)
        self._view(self.adapters.gradient).add_(is_row @ dx, alpha=scale)

    def put_logits(self, logits: torch.Tensor, x: torch.Tensor) -> None:
        """Write the tokens' logits into those of all, [M, vocabulary], from states x [M, hidden]."""
        logits.index_copy_(1, self.ids, x @ self.values.t())

    def take_gradient(self, dlogits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add the gradient from that of the logits, which becomes zero there; the part of that to x, [M, hidden]."""
        of_rows = dlogits.index_select(1, self.ids)
        dlogits.index_fill_(1, self.ids, 0)  # an assignment would copy its zero from the host
        self._view(self.adapters.gradient).add_(of_rows.t() @ x)
        return of_rows @ self.values

    def _view(self, flat: torch.Tensor) -> torch.Tensor:
        return self.adapters.view(flat, [self.parameter], self.parameter.shape)


def once(*ends: RowParameter | None) -> Iterator[RowParameter]:
    """Those of the ends that are there, a shared parameter once."""
    yield from {id(each.parameter): each for each in ends if each}.values()
