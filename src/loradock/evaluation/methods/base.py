"""The type of a method: how rows become work for the model, and work outcomes.

A method prepares each row once, which fixes its tokens; `run` takes rows that fit a forward pass together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loradock.evaluation.items import Item
from loradock.evaluation.outcomes import Outcome
from loradock.inference.opener import Opened

LOGITS_BYTES = 1 << 29
"""Float32 logits that are in memory at once."""
FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """A row ready to run: `tokens` that its forward passes read, `logits` positions at which they are needed.

    `longest`: tokens of its longest sequence, generated ones included.
    """

    item: Item
    longest: int
    tokens: int
    logits: int
    given: Any


class Method(Protocol):
    """How rows are answered. `name` and `settings` are recorded, and with the model they key the journal."""

    opened: Opened
    name: str
    settings: dict[str, Any]

    def prepare(self, item: Item) -> Work:
        """The work of a row; RowError where its template refuses it."""
        ...

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """What came of these rows, in their order."""
        ...


def batches(works: Sequence[Work], *, batch_tokens: int, vocabulary: int) -> Iterator[list[Work]]:
    """Works that run together, the longest first: too little memory shows at once, and padding is short.

    Padding counts as tokens. At least one row is in each.
    """
    most = max(1, LOGITS_BYTES // (FLOAT32_BYTES * vocabulary))
    batch: list[Work] = []
    tokens = logits = 0
    for work in sorted(works, key=lambda each: (-each.tokens, each.item.row)):
        tokens, logits = max(tokens, work.tokens), max(logits, work.logits)
        if batch and (tokens * (len(batch) + 1) > batch_tokens or logits * (len(batch) + 1) > most):
            yield batch
            batch, tokens, logits = [], work.tokens, work.logits
        batch.append(work)
    if batch:
        yield batch
