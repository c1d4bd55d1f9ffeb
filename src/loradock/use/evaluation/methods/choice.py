"""Choice by log-probability: the candidate that the model finds the most probable answer.

A candidate's log-probability is the sum over the tokens of the whole answer that it makes (`the correct answer is
true`), without what ends the turn. What all candidates of a row begin with, prompt included, is computed once; where
they differ in one token alone, its logits decide without another pass, else their ends continue its keys and values;
where a model keeps more than these, each candidate is computed from its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from loradock.use.evaluation.items import Item
from loradock.use.evaluation.methods.base import CPU_TOKENS, Work
from loradock.use.evaluation.methods.forward import (
    forward,
    last_logits,
    log_probabilities,
    padding_of,
    positions,
    right_padded,
)
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.opener import Opened


@dataclass(frozen=True, kw_only=True)
class Branches:
    """`prefix`: ids that all candidates share, the answer from `start` on; `ends`: what follows for each, not empty."""

    prefix: list[int]
    start: int
    ends: list[list[int]]

    @classmethod
    def of(cls, rows: Sequence[tuple[Sequence[int], int]]) -> Branches:
        """Of each candidate's whole ids and where its answer begins."""
        start = min(first for _, first in rows)
        most = min(len(ids) for ids, _ in rows) - 1
        shared = next((at for at in range(most) if len({ids[at] for ids, _ in rows}) > 1), most)
        ids = rows[0][0]
        return cls(prefix=list(ids[:shared]), start=min(start, shared), ends=[list(row[shared:]) for row, _ in rows])


class Choice:
    """See above. `score` is that of the raw log-probability; per character, as lm-eval's acc_norm, stands beside."""

    name = "choice"
    cpu_tokens: int | None = CPU_TOKENS

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.settings: dict[str, Any] = {}

    def prepare(self, item: Item) -> Work:
        """The candidates' tokens, as training would have them."""
        branches = Branches.of([self._answer(item, text) for text in item.texts])
        longest = max(map(len, branches.ends))
        tokens = len(branches.prefix) + (len(branches.ends) * longest if longest > 1 else 0)
        logits = len(branches.prefix) - branches.start + 1 + (len(branches.ends) * (longest - 1))
        return Work(item=item, longest=len(branches.prefix) + longest, tokens=tokens, logits=logits, given=branches)

    def _answer(self, item: Item, text: str) -> tuple[list[int], int]:
        """Ids of the row with that answer up to its end, and where the answer begins."""
        ids, learned = self.opened.prompts.row(item.saying(text))
        first, last = learned[0][0], learned[-1][1]
        while last > first + 1 and ids[last - 1] in self.opened.prompts.stop_ids:
            last -= 1
        return ids[:last], first

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """The most probable candidate of each row."""
        scores = branch_log_probabilities(self.opened, [work.given for work in works])
        return [_outcome(work.item, logprobs) for work, logprobs in zip(works, scores, strict=True)]


def _outcome(item: Item, logprobs: Sequence[float]) -> Outcome:
    lengths = [len(text) for text in item.texts]
    best = max(range(len(logprobs)), key=lambda pair: logprobs[pair])
    by_length = max(range(len(logprobs)), key=lambda pair: logprobs[pair] / lengths[pair])
    return Outcome(
        row=item.row,
        key=item.key,
        place=item.place,
        answer=item.answer,
        given=item.candidates[best],
        score=float(item.candidates[best] == item.answer),
        normalised=item.candidates[by_length],
        logprobs=tuple(logprobs),
    )


def branch_log_probabilities(opened: Opened, rows: Sequence[Branches]) -> list[list[float]]:
    """The log-probability of each candidate's answer, natural logarithm, of each row."""
    has_ends = any(len(end) > 1 for row in rows for end in row.ends)
    last = max(len(row.prefix) - row.start for row in rows) + 1
    logits, mask, cache = last_logits(opened, [row.prefix for row in rows], last=last, has_cache=has_ends)
    if has_ends and not can_branch(cache):
        return [_one_by_one(opened, row) for row in rows]
    sums = [_begun(logits[index], row) for index, row in enumerate(rows)]
    if has_ends:
        _continue(opened, rows, sums, mask=mask, cache=cache)
    return sums


def can_branch(cache: Any) -> bool:
    """Whether a cache holds keys and values alone: some recurrent layers begin anew with several tokens at once."""
    return all(
        hasattr(layer, "keys") and not hasattr(layer, "recurrent_states") for layer in getattr(cache, "layers", [None])
    )


def _begun(logits: Any, row: Branches) -> list[float]:
    """Up to the first token in which candidates differ, of one row: logits [positions, vocabulary]."""
    answer = row.prefix[row.start :]
    shared = log_probabilities(logits[len(logits) - 1 - len(answer) : -1], answer).double().sum() if answer else 0.0
    firsts = log_probabilities(logits[-1:].expand(len(row.ends), -1), [end[0] for end in row.ends])
    return (firsts.double() + shared).tolist()


def _continue(opened: Opened, rows: Sequence[Branches], sums: list[list[float]], *, mask: Any, cache: Any) -> None:
    """Adds the tokens after the first of each end that has more."""
    pending = [(index, number) for index, row in enumerate(rows) for number, end in enumerate(row.ends) if len(end) > 1]
    owners = torch.tensor([index for index, _ in pending], device=mask.device)
    cache.reorder_cache(owners)
    ends = [rows[index].ends[number] for index, number in pending]
    ids, ends_padded = right_padded([end[:-1] for end in ends], padding=padding_of(opened), device=mask.device)
    full_mask = torch.cat([mask[owners], ends_padded], dim=-1)
    places = positions(full_mask)[:, mask.shape[1] :]
    output = forward(
        opened, input_ids=ids, attention_mask=full_mask, position_ids=places, past_key_values=cache, use_cache=True
    )
    for (index, number), end, logits in zip(pending, ends, output.logits, strict=True):
        sums[index][number] += float(log_probabilities(logits[: len(end) - 1], end[1:]).double().sum())


def _one_by_one(opened: Opened, row: Branches) -> list[float]:
    """For a model whose cache cannot be continued by branches: each candidate from its beginning."""
    alone = [replace(row, prefix=row.prefix + end[:-1], ends=[end[-1:]]) for end in row.ends]
    return [branch_log_probabilities(opened, [row])[0][0] for row in alone]
