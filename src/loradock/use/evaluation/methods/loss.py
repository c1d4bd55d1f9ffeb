"""The loss of the right answer: its negative log-probability, over the tokens that training would learn of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods.base import CPU_TOKENS, Work
from loradock.use.evaluation.methods.forward import last_logits, log_probabilities
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.opener import Opened


class Loss:
    """`score` is the sum in nats over `tokens`; what ends the answer is one of them."""

    name = "loss"
    cpu_tokens: int | None = CPU_TOKENS

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.settings: dict[str, Any] = {}

    def prepare(self, item: Item) -> Work:
        """The whole row's tokens, and which are learned: those of the last answer."""
        ids, learned = self.opened.prompts.row(item.sample)
        places = [place for first, last in learned for place in range(first, last)]
        return Work(item=item, longest=len(ids), tokens=len(ids), logits=len(ids) - places[0] + 1, given=(ids, places))

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """The loss of each row."""
        rows = [work.given[0] for work in works]
        last = max(work.logits for work in works)
        logits, _, _ = last_logits(self.opened, rows, last=last, has_cache=False)
        outcomes: list[Outcome] = []
        for work, row_logits in zip(works, logits, strict=True):
            ids, places = work.given
            at = [len(row_logits) - len(ids) + place - 1 for place in places]
            total = -log_probabilities(row_logits[at], [ids[place] for place in places]).double().sum()
            item = work.item
            outcomes.append(
                Outcome(row=item.row, key=item.key, place=item.place, answer="", score=float(total), tokens=len(places))
            )
        return outcomes
