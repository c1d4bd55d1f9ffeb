"""The likeliest answers of prompts, batched as the commands batch them."""

from __future__ import annotations

from collections.abc import Sequence

from loradock.use.inference.decoding import Answer, Request, answers, batches
from loradock.use.inference.opener import Opened


def greedy(
    opened: Opened, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, batch_tokens: int = 8_192
) -> list[Answer]:
    """The likeliest continuation of each prompt, in their order."""
    answers_of: dict[int, Answer] = {}
    lengths = [len(prompt) for prompt in prompts]
    for rows in batches(lengths, max_new_tokens=max_new_tokens, batch_tokens=batch_tokens):
        requests = [Request(ids=prompts[row]) for row in rows]
        answers_of |= zip(rows, answers(opened, requests, max_new_tokens=max_new_tokens), strict=True)
    return [answers_of[row] for row in range(len(prompts))]
