"""The mask within one document: which earlier tokens a token sees."""

from __future__ import annotations

import torch


def needs_mask(length: int, window: int | None) -> bool:
    """Whether a document of `length` tokens reaches beyond the window, so that plain causal attention will not do."""
    return window is not None and length > window


def check_window(length: int, window: int | None) -> None:
    """ValueError where a bidirectional document is longer than the sliding window: kernels and libraries disagree."""
    if needs_mask(length, window):
        raise ValueError(f"a bidirectional document of {length} tokens is longer than the sliding window of {window}")


def visible(length: int, window: int | None, *, device: torch.device) -> torch.Tensor:
    """Bool [length, length]: True where the row's token sees the column's: j <= i, and i - j < window if there is one.

    The mask of a shorter document is its top-left corner.
    """
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril_()
    return mask if window is None else mask.triu_(1 - window)
