"""Rows that cannot be used, told before anything else is spent: the rows are read and converted, not yet tokenised."""

from __future__ import annotations

import time
from functools import partial

from loradock.catalog.objectives.base import ObjectiveSpec
from loradock.config.sections.data import DataConfig
from loradock.data.problems import BadRow, Problems
from loradock.data.readers import hub
from loradock.data.sources import held_out_files, samples
from loradock.errors import Problem

BUDGET_SECONDS = 2.0
GLANCE_SECONDS = 0.2
"""For a command that answers in seconds itself."""


def look(data: DataConfig, *, objective: ObjectiveSpec, seconds: float = BUDGET_SECONDS) -> None:
    """Read the rows of local sources for some seconds, and to their end once one is bad. DataError with every problem.

    What is proposed for columns of no format makes rows that the objective learns from.
    What was not come to, preparation reads. Raises what `data.sources.samples` raises.
    """
    numbered = [*enumerate((*data.sources, *held_out_files(data)))]
    parts = numbered[: len(data.sources)], numbered[len(data.sources) :]
    read = partial(samples, kinds=objective.samples, unread_fields=objective.unread_fields)
    problems, share, until = Problems(can_skip=True), 0.0, time.monotonic() + seconds
    for part in parts:
        earlier_problems, good_rows = problems.count, 0
        for index, source in part:
            if hub.is_hub(source.path):
                continue
            for _, sample in read(source, index=index):
                if isinstance(sample, Problem):
                    if not (data.skips and isinstance(sample, BadRow)):
                        problems.add(sample)
                    continue
                good_rows += 1
                if not problems.count and time.monotonic() > until:
                    return
        bad_rows = problems.count - earlier_problems
        share = max(share, bad_rows / max(1, bad_rows + good_rows))
    files = [source.path for _, source in numbered]
    problems.check(files=files, share=share, max_dropped=data.max_dropped)
