"""One run: its record, status and watchdog around its stages, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loradock import directory as directories
from loradock import secrecy, signals, termination
from loradock.config.load import Loaded
from loradock.engine.status import Status
from loradock.engine.watchdog import Limits, Watchdog
from loradock.errors import EnvironmentUnfit, Hung, Interrupted, Locked, LoradockError, Stopped
from loradock.facts import Facts
from loradock.record import RunRecord
from loradock.stages import Exam, Result, Stages
from loradock.telling import View


def execute(
    loaded: Loaded,
    *,
    facts: Facts,
    directory: Path,
    view: View,
    exam: Exam | None = None,
    env_check: dict[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    allowed: Collection[str] = (),
    fence: Callable[[], None] = lambda: None,
) -> Result:
    """Run it all; raises LoradockError, with run.json telling how far it came, `env_check` in it.

    `before` is the record of the run that lies in `directory` unfinished, which is continued; `allowed` names the
    fields in which it may have changed. `fence` raises Locked where another run has taken the directory over.
    """
    record = RunRecord(directory, config=loaded.config, origins=loaded.origins, facts=facts, before=before, fence=fence)
    record.put(env_check=env_check)
    status = Status(directory, run_id=record.run_id, is_writing=record.is_writing)
    termination.note(directory=str(directory), run_id=record.run_id)
    limits = Limits(**loaded.config.limits.model_dump())
    if facts.rank:  # it waits for rank 0, which has a limit
        limits = replace(limits, setup_seconds=0)
    heartbeat = os.environ.get("LORADOCK_HEARTBEAT") if not facts.local_rank else None

    def hung(error: Hung) -> None:
        termination.write(error.exit_code, error)  # first: the main thread may hang in one of the other files
        end(record, status, error)

    try:
        with Watchdog(limits, heartbeat=Path(heartbeat) if heartbeat else None, on_hang=hung) as watchdog:
            stages = Stages(loaded=loaded, facts=facts, record=record, status=status, view=view, watchdog=watchdog)
            result = stages.go(allowed=allowed, exam=exam)
            if watchdog.problem:
                view.note(f"warning: {watchdog.problem}")
    except (Exception, KeyboardInterrupt) as error:
        ended = as_loradock_error(error, directory, has_committed=record.has_committed)
        if not isinstance(ended, Locked):  # what lies there is another run's now
            end(record, status, ended)
        raise ended from error
    record.end("finished", exit_code=0)
    status.put(state="finished", exit_code=0, now=True)
    return result


def end(record: RunRecord, status: Status, error: LoradockError) -> None:
    """Record how a run ended that did not finish."""
    state = "interrupted" if isinstance(error, (Interrupted, Stopped)) else "failed"
    status.put(state=state, exit_code=error.exit_code, reason=error.what, now=True)
    record.end(state, exit_code=error.exit_code, error=secrecy.without(str(error), secrecy.of(os.environ)))


def as_loradock_error(error: BaseException, directory: Path, *, has_committed: bool) -> LoradockError:
    """What ended a run, as an error with an exit code; one that nobody foresaw is a bug (70) and keeps its type.

    Where a signal came, what broke in its wake (a worker that it ended, too) is its doing.
    """
    by = signals.requested()
    if isinstance(error, KeyboardInterrupt) or (by and isinstance(error, (EnvironmentUnfit, OSError, RuntimeError))):
        hint = f"the same command, or loradock train --resume --output {directory}, continues"
        kind, committed = (Stopped, "what was new is committed") if has_committed else (Interrupted, "nothing was new")
        return kind(f"stopped by {by or 'a signal'}; {committed}", hint=hint)
    if isinstance(error, LoradockError):
        return error
    if isinstance(error, OSError):
        return directories.storage_error(error, Path(error.filename or directory))
    return LoradockError(f"unexpected {type(error).__name__}: {error}", hint="report this with run.json")
