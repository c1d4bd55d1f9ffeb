"""Forward passes over prompts of different lengths, with logits at the last positions alone.

Rows are padded on the left, so that what is needed stands at the end of each, and a cache of keys and values can be
continued without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loradock.errors import OutOfMemory
from loradock.inference.opener import Opened


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
    ids, mask = left_padded(rows, padding=padding_of(opened), device=opened.model.device)
    output = forward(
        opened,
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions(mask),
        use_cache=has_cache,
        logits_to_keep=min(last, ids.shape[1]),
    )
    return output.logits, mask, output.past_key_values if has_cache else None


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
    wanted = torch.tensor(ids, device=logits.device)
    floats = logits.float()
    return (floats.gather(-1, wanted[:, None]).squeeze(-1) - floats.logsumexp(-1)).cpu()
