"""What the data loader of a run holds at once: shared memory and open files. Pure, and no check itself.

The figures of `optimizations/dataloader.py` stand here again: importing them would import the configuration's schema,
for which a quick check has no time. A test holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loradock.checks.base import Intent
from loradock.facts import Facts

MOST_WORKERS = 2
PREFETCH = 4
TENSORS = 4
TOKEN_BYTES = 8 * TENSORS
GLOBAL_BATCH = 16
MAX_LENGTH = 1024


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Workers of all processes on this machine, and what they hold at most."""

    workers: int
    shared_bytes: int
    open_files: int


def has_card(facts: Facts, plan: Intent) -> bool:
    """True where the run would use a card."""
    return plan.uses_card(facts)


def workers(facts: Facts, plan: Intent) -> int:
    """Loader workers of one process, for data large enough to want them."""
    asked = plan.config.train.workers if plan.config else "auto"
    if asked != "auto":
        return asked
    return max(0, min(MOST_WORKERS, facts.cpus // facts.processes_here - 1)) if has_card(facts, plan) else 0


def loading(facts: Facts, plan: Intent) -> Loading:
    """Each worker holds PREFETCH steps and the one it works at; a tensor in shared memory is an open file too."""
    config = plan.config
    length = config.data.max_length if config and config.data.max_length != "auto" else MAX_LENGTH
    rows = math.ceil((config.train.global_batch if config else GLOBAL_BATCH) / facts.world_size)
    all_workers = workers(facts, plan) * facts.processes_here
    return Loading(
        workers=all_workers,
        shared_bytes=all_workers * (PREFETCH + 1) * rows * length * TOKEN_BYTES,
        open_files=workers(facts, plan) * PREFETCH * rows * TENSORS,
    )
