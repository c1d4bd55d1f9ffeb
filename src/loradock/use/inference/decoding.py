"""Prompts to answers, batched: a row's answer is what the row gives alone, whatever stands beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from loradock.errors import OutOfMemory
from loradock.use.inference.opener import Opened
from loradock.use.inference.sampling import GREEDY, Chooser, Sampling

Finish = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Token ids to continue, and the seed of what is drawn."""

    ids: Sequence[int]
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Generated ids, without the one that ended them, their text, and why they end: `stop`, or `length`."""

    ids: list[int]
    text: str
    finish: Finish


def batches(lengths: Sequence[int], *, max_new_tokens: int = 0, batch_tokens: int) -> Iterator[list[int]]:
    """Places of rows, the longest first: too little memory shows at once, and padding is short."""
    remaining = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while remaining:
        count = max(1, batch_tokens // (lengths[remaining[0]] + max_new_tokens))
        yield remaining[:count]
        remaining = remaining[count:]


def answers(
    opened: Opened,
    requests: Sequence[Request],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    on_token: Callable[[int], None] | None = None,
) -> list[Answer]:
    """The answers of one batch, in its order. Raises OutOfMemory.

    Prompts are padded on the left. Rows that ended leave the batch once half of it has. `on_token` is given the tokens
    of the first row, one by one.
    """
    try:
        decoded = _decode(opened, requests, max_new_tokens=max_new_tokens, sampling=sampling, on_token=on_token)
    except torch.OutOfMemoryError as error:
        longest = max(len(request.ids) for request in requests) + max_new_tokens
        what = f"CUDA out of memory with {len(requests)} rows of up to {longest} tokens in a batch"
        raise OutOfMemory(what, hint=f"--batch-tokens {max(longest, len(requests) * longest // 2)}") from error
    stops = opened.prompts.stop_ids
    return [_answer(opened.tokenizer, ids, stops) for ids in decoded]


def _answer(tokenizer: Any, ids: list[int], stops: frozenset[int]) -> Answer:
    has_ended = bool(ids) and ids[-1] in stops
    answer_ids = ids[:-1] if has_ended else ids
    text = tokenizer.decode(answer_ids, skip_special_tokens=True)
    return Answer(ids=answer_ids, text=text, finish="stop" if has_ended else "length")


def _decode(
    opened: Opened,
    requests: Sequence[Request],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    on_token: Callable[[int], None] | None,
) -> list[list[int]]:
    ids_of: list[list[int]] = [[] for _ in requests]
    choosers = [Chooser(sampling, seed=request.seed) for request in requests]
    stops = opened.prompts.stop_ids
    state = _Batch(opened, [request.ids for request in requests])
    alive = list(range(len(requests)))
    for step in range(max_new_tokens):
        logits = state.logits()
        tokens: list[int] = []
        for place, row in enumerate(state.rows):
            token = choosers[row](logits[place]) if row in alive else state.padding
            tokens.append(token)
            if row in alive:
                ids_of[row].append(token)
                if row == 0 and on_token:
                    on_token(token)
        alive = [row for row in alive if ids_of[row][-1] not in stops]
        if not alive or step == max_new_tokens - 1:
            break
        state.append(tokens)
        if len(alive) <= len(state.rows) // 2:
            state.keep(alive)
    return ids_of


class _Batch:
    """Rows with their keys and values, padded on the left; `rows` says which those still are."""

    def __init__(self, opened: Opened, prompts: Sequence[Sequence[int]]) -> None:
        self._opened, self._cache = opened, None
        self.rows = list(range(len(prompts)))
        self.padding = int(opened.tokenizer.pad_token_id)
        width = max(len(prompt) for prompt in prompts)
        device = opened.model.device
        ids = [[self.padding] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._new = torch.tensor(ids, device=device)
        self._mask = torch.tensor(mask, device=device)
        model = opened.model.get_base_model() if opened.has_adapter else opened.model
        self._takes = frozenset(inspect.signature(model.forward).parameters)

    def logits(self) -> torch.Tensor:
        """Float32 [rows, vocabulary] of the next token."""
        inputs: dict[str, Any] = {"input_ids": self._new, "attention_mask": self._mask, "use_cache": True}
        if "position_ids" in self._takes:
            positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
            inputs["position_ids"] = positions[:, -self._new.shape[1] :]
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = 1
        with self._opened.computing():
            out = self._opened.model(**inputs, past_key_values=self._cache)
        self._cache = out.past_key_values
        return out.logits[:, -1].float()

    def append(self, tokens: Sequence[int]) -> None:
        """The tokens that were chosen, one a row."""
        self._new = torch.tensor(tokens, device=self._mask.device)[:, None]
        self._mask = torch.cat([self._mask, torch.ones_like(self._new)], dim=1)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows."""
        places = torch.tensor([self.rows.index(row) for row in rows], device=self._mask.device)
        self._new, self._mask = self._new[places], self._mask[places]
        cache: Any = self._cache
        cache.reorder_cache(places)
        self.rows = list(rows)
