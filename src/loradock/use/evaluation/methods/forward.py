"""Forward passes over prompts of different lengths, with logits at the last positions alone.

Rows are padded on the left, so that what is needed stands at the end of each, and a cache of keys and values can be
continued. What all rows of a batch begin with (a system prompt, a task's instruction) is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loradock.errors import OutOfMemory
from loradock.use.inference.opener import Opened

KNOWN_LAYERS = frozenset(("full_attention", "sliding_attention"))
SHARING_ROWS, SHARED_TOKENS = 4, 8
"""Rows, and tokens that they have in common, from which on those are computed apart."""


def left_padded(rows: Sequence[Sequence[int]], *, padding: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, int64 [rows, longest]."""
    width = max(map(len, rows))
    ids = torch.tensor([[padding] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids.to(device), mask.to(device)


def right_padded(rows: Sequence[Sequence[int]], *, padding: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """As `left_padded`, the padding at the end."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids.to(device), mask.to(device)


def positions(mask: torch.Tensor) -> torch.Tensor:
    """The place of each token in its row, int64 like `mask`; padding has place 0."""
    return (mask.cumsum(-1) - 1).clamp_(min=0)


def last_logits(opened: Opened, rows: Sequence[Sequence[int]], *, last: int, has_cache: bool) -> tuple[Any, Any, Any]:
    """Logits [rows, last, vocabulary] at the last positions; the attention mask; the cache, None unless asked for."""
    device, padding = opened.model.device, padding_of(opened)
    shared = _shared(opened, rows, last=last)
    ids, mask = left_padded([row[shared:] for row in rows], padding=padding, device=device)
    states: dict[str, Any] = {}
    if shared:
        states["past_key_values"] = _repeated(opened, rows[0][:shared], rows=len(rows))
        ones = torch.ones(len(rows), shared, dtype=mask.dtype, device=device)
        mask = torch.cat([ones, mask], dim=-1)
    output = forward(
        opened,
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions(mask)[:, shared:],
        use_cache=has_cache or bool(shared),
        logits_to_keep=min(last, ids.shape[1]),
        **states,
    )
    return output.logits, mask, output.past_key_values if has_cache else None


def _repeated(opened: Opened, ids: Sequence[int], *, rows: int) -> Any:
    """The keys and values of these tokens, for each of so many rows."""
    first = torch.tensor([list(ids)], device=opened.model.device)
    cache = forward(opened, input_ids=first, use_cache=True, logits_to_keep=1).past_key_values
    cache.reorder_cache(torch.zeros(rows, dtype=torch.long, device=first.device))
    return cache


def _shared(opened: Opened, rows: Sequence[Sequence[int]], *, last: int) -> int:
    """Tokens that all rows begin with and that need no logits; 0 where one pass more would not pay for them.

    Padding then lies behind them, which a window of attention would count: rows longer than it are computed whole.
    """
    config = opened.model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    is_within = window is None or max(map(len, rows)) <= window
    if len(rows) < SHARING_ROWS or not is_within or not KNOWN_LAYERS.issuperset(kinds):
        return 0
    most = min(len(row) for row in rows) - last
    shared = next((at for at in range(most) if len({row[at] for row in rows}) > 1), most)
    return shared if shared >= SHARED_TOKENS else 0


def forward(opened: Opened, **given: Any) -> Any:
    """The model's output without gradients. OutOfMemory with the option that needs less."""
    shape = tuple(given["input_ids"].shape)
    try:
        with opened.computing():
            return opened.model(**given)
    except torch.OutOfMemoryError as error:
        what = f"CUDA out of memory with {shape[0]} rows of {shape[1]} tokens in a forward pass"
        raise OutOfMemory(what, hint=f"--batch-tokens {max(shape[1], shape[0] * shape[1] // 2)}") from error


def padding_of(opened: Opened) -> int:
    """The id that fills; which it is changes nothing."""
    tokenizer = opened.tokenizer
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def log_probabilities(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Float32 [positions] on CPU: of `ids`, each at its position of `logits` [positions, vocabulary]."""
    targets = torch.tensor(ids, device=logits.device)
    floats = logits.float()
    return (floats.gather(-1, targets[:, None]).squeeze(-1) - floats.logsumexp(-1)).cpu()
