"""What `train` makes of a run once it is finished: the section `after` of the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from loradock import signals
from loradock.config.schema import AfterConfig

MERGED = "merged"


def make(asked: AfterConfig, directory: Path, *, note: Callable[[str], None]) -> None:
    """What is missing of it: the same command makes it where a run was finished before, or was stopped here."""
    if asked.merge == "none" or os.path.lexists(directory / MERGED):
        return
    from loradock.merge.job import Asked, prepared
    from loradock.merge.run import run

    def count(_: int, __: int) -> None:
        signals.check()

    with redirect_stdout(sys.stderr), prepared(directory, Asked(onto=asked.merge)) as job:
        note(f"merging onto the {job.plan.onto} weights: {job.why}")
        run(job, directory / MERGED, is_full=False, progress=count)
    note(f"merged model: {directory / MERGED}")
