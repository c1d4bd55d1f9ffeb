"""`after.merge`: the adapter and its base as one model directory, `merged` in the run's."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any, cast

from loradock.process import signals
from loradock.use.after.base import After, Finished, Run

MERGED = "merged"


def is_due(run: Run) -> bool:
    """Asked for, and nothing lies where it would be."""
    return run.config.after.merge != "none" and MERGED not in run.names


def make(finished: Finished) -> None:
    """Merge onto the weights that are asked for."""
    from loradock.use.merge.job import Asked, prepared
    from loradock.use.merge.run import run

    request = Asked(onto=cast("Any", finished.config.after.merge), trusted=finished.trusted)
    with redirect_stdout(sys.stderr), prepared(finished.directory, request) as job:
        finished.note(f"merging onto the {job.plan.onto} weights: {job.why}")
        run(job, finished.directory / MERGED, is_full=False, progress=lambda _, __: signals.check())
    finished.note(f"merged model: {finished.directory / MERGED}")


AFTER = After(is_due=is_due, make=make)
