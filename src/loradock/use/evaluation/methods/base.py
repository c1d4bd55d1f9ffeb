"""The type of a method: how rows become work for the model, and work outcomes.

A method prepares each row once, which fixes its tokens; `run` takes rows that fit a forward pass together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loradock.use.evaluation.items import Item
from loradock.use.evaluation.outcomes import Outcome
from loradock.use.inference.opener import Opened

LOGITS_BYTES = 1 << 29
"""Float32 logits that are in memory at once."""
FLOAT32_BYTES = 4
CPU_TOKENS = 1_024
"""Of one pass over prompts: matrix products are at their best from there on, and caches and padding suffer beyond.

45 rows of 63 to 151 tokens, SmolLM2-135M, CPU seconds: a row each 10.0, 512 7.0, 1,024 6.3, 2,048 7.0, all 11.8.
"""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A row ready to run: `tokens` that its forward passes read, `logits` positions at which they are needed.

    `longest`: tokens of its longest sequence, of which `generated` are those that an answer may have.
    """

    item: Item
    longest: int
    tokens: int
    logits: int
    given: Any
    generated: int = 0


class Method(Protocol):
    """How rows are answered. `name` and `settings` are recorded, and with the model they key the journal.

    `cpu_tokens`: more in a pass on a CPU are slower; None where that is not so.
    """

    opened: Opened
    name: str
    cpu_tokens: int | None
    settings: dict[str, Any]

    def prepare(self, item: Item) -> Work:
        """The work of a row; RowError where its template refuses it."""
        ...

    def run(self, works: Sequence[Work]) -> list[Outcome]:
        """What came of these rows, in their order."""
        ...


def batches(method: Method, works: Sequence[Work], *, batch_tokens: int) -> Iterator[list[Work]]:
    """Works that run together, the longest first: too little memory shows at once, and padding is short.

    Each has at most `batch_tokens`, padding included, and at least one row.
    """
    model = method.opened.model
    if model.device.type == "cpu" and method.cpu_tokens:
        batch_tokens = min(batch_tokens, method.cpu_tokens)
    most = max(1, LOGITS_BYTES // (FLOAT32_BYTES * model.config.get_text_config().vocab_size))
    batch: list[Work] = []
    tokens = logits = 0
    for work in sorted(works, key=lambda row: (-row.tokens, row.item.row)):
        tokens, logits = max(tokens, work.tokens), max(logits, work.logits)
        if batch and (tokens * (len(batch) + 1) > batch_tokens or logits * (len(batch) + 1) > most):
            yield batch
            batch, tokens, logits = [], work.tokens, work.logits
        batch.append(work)
    if batch:
        yield batch
