"""One run: its record, status and watchdog around its stages, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from loradock import redact, signals, termination_log
from loradock.config.load import Loaded
from loradock.distributed import collectives
from loradock.distributed.heartbeat import Peers
from loradock.distributed.watchdog import Limits, Watchdog
from loradock.env_check.guard import Guard
from loradock.errors import Interrupted, Locked, LoradockError, Stopped
from loradock.facts import Facts
from loradock.training.endings import as_loradock_error
from loradock.training.run_dir.record import RunRecord
from loradock.training.run_dir.status import Status
from loradock.training.stages import Exam, Result, Stages
from loradock.training.telling import View


def execute(
    loaded: Loaded,
    *,
    facts: Facts,
    directory: Path,
    view: View,
    exam: Exam | None = None,
    env_check: dict[str, Any] | None = None,
    guard: Guard | None = None,
    spent: Mapping[str, float] | None = None,
    before: Mapping[str, Any] | None = None,
    allowed: Collection[str] = (),
    fence: Callable[[], None] = lambda: None,
    peers: Peers | None = None,
) -> Result:
    """Run it all; raises LoradockError, with run.json telling how far it came, `env_check` in it.

    `guard` proves by computing, once the plan is known, that this machine can train; None where nothing is proven.

    `spent`: seconds of this process before, by stage, which count as its stages do.
    `before` is the record of the run that lies in `directory` unfinished, which is continued; `allowed` names the
    fields in which it may have changed. `fence` raises Locked where another run has taken the directory over. `peers`
    are the other processes of the run, which end it where one of them is gone.
    """
    record = None
    status = Status(directory, run_id=(before or {}).get("run_id", ""), is_writing=facts.rank == 0)
    termination_log.note(directory=str(directory))
    try:
        record = RunRecord(
            directory, config=loaded.config, origins=loaded.origins, facts=facts, before=before, fence=fence
        )
        record.spent_before(spent or {})
        record.put(env_check=env_check)
        status = Status(directory, run_id=record.run_id, is_writing=record.is_writing)
        with watched(loaded, facts=facts, record=record, status=status, view=view, peers=peers) as watchdog:
            stages = Stages(
                loaded=loaded,
                facts=facts,
                record=record,
                status=status,
                view=view,
                watchdog=watchdog,
                peers=peers,
                guard=guard,
            )
            result = stages.go(allowed=allowed, exam=exam)
        record.end("finished", exit_code=0)
        status.put(state="finished", exit_code=0, now=True)
        return result
    except (Exception, KeyboardInterrupt) as error:
        with signals.deferred():
            ended = collectives.blamed(error, peers)
            ended = ended or as_loradock_error(error, directory, has_committed=bool(record and record.has_committed))
            if problem := end(record, status, ended) if record else None:
                view.note(f"warning: how the run ended is not recorded: {problem}")
        raise ended from error


@contextmanager
def watched(
    loaded: Loaded, *, facts: Facts, record: RunRecord, status: Status, view: View, peers: Peers | None
) -> Iterator[Watchdog]:
    """The watchdog of a run; where it ends the process, the record says so, and the other processes hear of it."""
    limits = Limits(**loaded.config.limits.model_dump(exclude={"peer_seconds"}))
    if facts.rank:  # it waits for rank 0, which has a limit
        limits = replace(limits, setup_seconds=0)
    heartbeat = os.environ.get("LORADOCK_HEARTBEAT") if not facts.local_rank else None

    def hung(error: LoradockError) -> None:
        termination_log.write(error.exit_code, error)  # first: the main thread may hang in one of the other files
        end(record, status, error)
        if peers:
            peers.say(error)

    with Watchdog(limits, heartbeat=Path(heartbeat) if heartbeat else None, on_hang=hung) as watchdog:
        if peers:
            peers.watchdog = watchdog
        yield watchdog
    if watchdog.problem:
        view.note(f"warning: {watchdog.problem}")


def end(record: RunRecord, status: Status, error: LoradockError) -> str | None:
    """Record how a run ended that did not finish; returns why that could not be written. The error itself goes on."""
    if isinstance(error, Locked):  # what lies there is another run's now
        return None
    state = "interrupted" if isinstance(error, (Interrupted, Stopped)) else "failed"
    status.put(state=state, exit_code=error.exit_code, reason=error.what, now=True)
    try:
        record.end(state, exit_code=error.exit_code, error=redact.without(str(error), redact.of(os.environ)))
    except (OSError, Locked) as problem:
        return str(problem)
    return None
