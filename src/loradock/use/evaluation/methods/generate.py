"""Greedy generation: the answer is what the model says, or what a task finds in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods.base import Work
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.decoding import Answer, Request, answers
from loradock.use.inference.opener import Opened


class Greedy(ABC):
    """The run's own template, one greedy answer of at most `max_new_tokens`."""

    name: str
    cpu_tokens: int | None = None

    def __init__(self, opened: Opened, *, max_new_tokens: int) -> None:
        self.opened, self._most = opened, max_new_tokens
        self.settings = {"max_new_tokens": max_new_tokens}

    def prepare(self, item: Item) -> Work:
        """The prompt's tokens."""
        ids = self.opened.prompts.prompt_of(item.sample)
        length = len(ids) + self._most
        return Work(item=item, longest=length, tokens=length, logits=1, given=ids, generated=self._most)

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """One answer each."""
        requests = [Request(ids=work.given) for work in works]
        replies = answers(self.opened, requests, max_new_tokens=self._most)
        return [self.outcome(work.item, answer) for work, answer in zip(works, replies, strict=True)]

    @abstractmethod
    def outcome(self, item: Item, answer: Answer) -> Outcome:
        """What an answer to a row is worth."""


class Generate(Greedy):
    """`extract` makes the answer of a text (empty: none), `score` compares it with the right one."""

    name = "generate"

    def __init__(
        self,
        opened: Opened,
        *,
        max_new_tokens: int,
        extract: Callable[[str], str] = str.strip,
        score: Callable[[str, str], float],
    ) -> None:
        super().__init__(opened, max_new_tokens=max_new_tokens)
        self._extract, self._score = extract, score

    def outcome(self, item: Item, answer: Answer) -> Outcome:
        """See `Greedy`."""
        return generated(item, answer.text, answer.finish, extract=self._extract, score=self._score)


def generated(
    item: Item, text: str, finish: str, *, extract: Callable[[str], str], score: Callable[[str, str], float]
) -> Outcome:
    """The outcome of a text that was generated for a row; without an answer in it, its score is 0."""
    answer = extract(text)
    return Outcome(
        row=item.row,
        key=item.key,
        place=item.place,
        answer=item.answer,
        given=answer,
        score=score(answer, item.answer) if answer else 0.0,
        text=text,
        finish=finish,
    )
