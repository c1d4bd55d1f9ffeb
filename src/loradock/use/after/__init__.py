"""What `train` makes of a run once it is finished, in this order: one file each, and its place in `AFTER`.

It is made under the lock of the run, which is taken again: the same command makes what is missing where a run was
finished before, or this was stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from loradock.config.schema import RunConfig
from loradock.training.run_dir import recorded
from loradock.training.run_dir.output_lock import OutputLock
from loradock.use.after import evaluate, merge
from loradock.use.after.base import After, Finished, Run

AFTER = (evaluate.AFTER, merge.AFTER)


def check(config: RunConfig) -> None:
    """Before anything is trained: ConfigError for a task that is none, InputMissing for a file that is not there."""
    for member in AFTER:
        member.check(config)


def make(config: RunConfig, directory: Path, *, note: Callable[[str], None]) -> None:
    """Make what is asked for and missing. Locked (84) where another process writes in the run's directory."""
    if not any(is_due(member, run_in(config, directory)) for member in AFTER):
        return  # a finished run may lie where nobody writes
    lock = OutputLock.take(directory)
    try:
        for member in AFTER:
            run = run_in(config, directory)  # anew: until the lock was taken another process may have made it
            if is_due(member, run):
                member.make(Finished(**vars(run), fence=lock.check, note=note))
    finally:
        lock.release()


def run_in(config: RunConfig, directory: Path) -> Run:
    """The run that lies in a directory. StorageError where its record cannot be read."""
    return Run(config=config, directory=directory, content=recorded.read(directory), names=os.listdir(directory))


def is_due(member: After, run: Run) -> bool:
    """Whether the run is finished, and has yet to have this made of it."""
    return run.content.get("status") == "finished" and member.is_due(run)
