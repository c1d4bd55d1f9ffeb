"""Greedy answers from a model, for samples and for exact-match accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def answer(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, batch: int = 32
) -> list[str]:
    """One greedy continuation a prompt, as text without special tokens.

    `prompts` are token ids with the generation header at their end; they are padded on the left, so a batch gives
    what each prompt gives alone. The model's mode (train or eval) is put back afterwards.
    """
    import torch

    was_training = model.training
    model.eval()
    answers: list[str] = []
    device = next(model.parameters()).device
    pad = tokenizer.pad_token_id
    try:
        for start in range(0, len(prompts), batch):
            group = prompts[start : start + batch]
            width = max(len(prompt) for prompt in group)
            ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in group], device=device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in group], device=device)
            with torch.no_grad():
                out = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                    temperature=None,
                    top_p=None,
                    top_k=None,
                    use_cache=True,
                    pad_token_id=pad,
                    eos_token_id=tokenizer.eos_token_id,
                )
            answers += [tokenizer.decode(row[width:], skip_special_tokens=True) for row in out]
    finally:
        model.train(was_training)
    return answers
