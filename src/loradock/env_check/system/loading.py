"""What the data loader of a run holds at once: shared memory and open files. Pure, and no check itself.

GLOBAL_BATCH is the configuration's default, whose schema a quick check has no time to import; a test holds the two
together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loradock.env_check.base import Intent
from loradock.facts import Facts
from loradock.plan import memory

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


def workers(facts: Facts, plan: Intent) -> int:
    """Loader workers of one process, for data large enough to want them."""
    setting = plan.config.train.workers if plan.config else "auto"
    if setting != "auto":
        return setting
    return memory.loader_workers(facts) if plan.uses_gpu(facts) else 0


def loading(facts: Facts, plan: Intent) -> Loading:
    """Each worker holds its prefetched steps and the one it works at; a tensor in shared memory is an open file too."""
    config = plan.config
    length = config.data.max_length if config and config.data.max_length != "auto" else MAX_LENGTH
    rows = math.ceil((config.step_samples if config else GLOBAL_BATCH) / facts.world_size)
    all_workers = workers(facts, plan) * facts.processes_here
    return Loading(
        workers=all_workers,
        shared_bytes=all_workers * (memory.LOADER_PREFETCH + 1) * rows * length * TOKEN_BYTES,
        open_files=workers(facts, plan) * memory.LOADER_PREFETCH * rows * TENSORS,
    )
