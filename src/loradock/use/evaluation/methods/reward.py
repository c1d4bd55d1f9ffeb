"""Choice by reward: of the candidates the one that a reward model scores highest, each read whole with its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from loradock.model import reward_head
from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods.base import CPU_TOKENS, Work
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.opener import Opened


class Reward:
    """The opened model has a head. A score is read where training reads it, see `reward_head.last_place`."""

    name = "reward"
    cpu_tokens: int | None = CPU_TOKENS

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.settings: dict[str, Any] = {}

    def prepare(self, item: Item) -> Work:
        """The tokens of each candidate with its prompt, as training has them."""
        rows = [self.opened.prompts.row(item.saying(text))[0] for text in item.texts]
        longest = max(map(len, rows))
        return Work(item=item, longest=longest, tokens=longest * len(rows), logits=0, given=rows)

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """The candidate of each row that has the highest score."""
        scores = self._scores([row for work in works for row in work.given])
        outcomes: list[Outcome] = []
        for work in works:
            count, item = len(work.given), work.item
            rewards, scores = scores[:count], scores[count:]
            best = item.candidates[max(range(count), key=rewards.__getitem__)]
            outcomes.append(
                Outcome(
                    row=item.row,
                    key=item.key,
                    place=item.place,
                    answer=item.answer,
                    given=best,
                    score=float(best == item.answer),
                    rewards=tuple(rewards),
                )
            )
        return outcomes

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        tokenizer, model = self.opened.tokenizer, self.opened.model
        padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        places = [reward_head.last_place(row, pad_token_id=padding) for row in rows]
        with self.opened.computing():
            decoder = model.get_decoder()
            inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
            states = decoder(**inputs, use_cache=False).last_hidden_state
            with torch.autocast(states.device.type, enabled=False):
                vectors = states[torch.arange(len(rows)), torch.tensor(places)].float()
                return reward_head.rewards(model, vectors)[:, 0].double().tolist()
