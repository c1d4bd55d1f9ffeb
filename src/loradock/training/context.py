"""What is around a run: its record, status, watchdog and peers, and how it ends. `opened` is the one way in and out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from loradock.config.load import Loaded
from loradock.distributed import collectives
from loradock.distributed.heartbeat import Peers
from loradock.distributed.watchdog import Limits, Phase, Watchdog
from loradock.env_check.guard import Guard
from loradock.errors import Interrupted, Locked, LoradockError, NoCheckpoint, Stopped
from loradock.facts import Facts
from loradock.plan.plan import Plan
from loradock.process import signals, termination_log
from loradock.text import redact
from loradock.training.endings import as_loradock_error
from loradock.training.run_dir.record import RunRecord
from loradock.training.run_dir.status import Status

PHASES: dict[str, Phase] = {"training": "step", "export": "save"}
STATES = {"training": "training", "export": "exporting"}


class View(Protocol):
    """What a person watches. It is called on every rank; only the first one's is shown."""

    def note(self, text: str) -> None:
        """One line of text."""

    def stage(self, text: str) -> None:
        """A stage begins."""

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows and tokens prepared so far."""

    def plan(self, plan: Plan) -> None:
        """The plan was made."""

    def event(self, event: Any) -> None:
        """Something happened in training: one of `training.events`."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """An open run. `allowed` names the fields in which it may differ from the run that it continues."""

    loaded: Loaded
    facts: Facts
    record: RunRecord
    status: Status
    view: View
    watchdog: Watchdog
    allowed: Collection[str] = ()
    peers: Peers | None = None
    guard: Guard | None = None

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.record.directory

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce a stage, record how long it took, and stop before it where a signal came."""
        signals.check()
        self.watchdog.beat(PHASES.get(name, "setup"))
        self.view.stage(name)
        self.status.put(state=STATES.get(name, "setup"), now=True)
        began = time.monotonic()
        try:
            yield
        finally:
            self.record.timing(name, time.monotonic() - began)
            self.watchdog.beat("setup")

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows are prepared chunk by chunk."""
        signals.check()
        self.watchdog.beat()
        self.view.prepared_rows(rows, tokens)


@contextmanager
def opened(
    loaded: Loaded,
    *,
    facts: Facts,
    directory: Path,
    view: View,
    env_check: dict[str, Any] | None = None,
    guard: Guard | None = None,
    spent: Mapping[str, float] | None = None,
    before: Mapping[str, Any] | None = None,
    allowed: Collection[str] = (),
    fence: Callable[[], None] = lambda: None,
    peers: Peers | None = None,
) -> Iterator[RunContext]:
    """A run in a directory of its own. What is raised inside is recorded, and raised as a LoradockError.

    `env_check` is what was found of the machine; `guard` proves by computing, once the plan is known, that it can
    train; None where nothing is proven. `spent`: seconds of this process before, by stage, which count as stages do.
    `before` is the record of the run that lies in `directory` unfinished, which is continued. `fence` raises Locked
    where another run has taken the directory over. `peers` are the other ranks, which end the run where one is gone.
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
            yield RunContext(
                loaded=loaded,
                facts=facts,
                record=record,
                status=status,
                view=view,
                watchdog=watchdog,
                allowed=allowed,
                peers=peers,
                guard=guard,
            )
        with signals.deferred():  # a signal now would have the record and the exit code say different things
            record.end("finished", exit_code=0)
            status.put(state="finished", exit_code=0, now=True)
    except (Exception, KeyboardInterrupt) as error:
        with signals.deferred():
            ended = collectives.blamed(error, peers)
            ended = ended or as_loradock_error(error, directory, has_committed=bool(record and record.has_committed))
            if problem := end(record, status, ended) if record else None:
                view.note(f"warning: how the run ended could not be recorded: {problem}")
        raise ended from error


@contextmanager
def watched(
    loaded: Loaded, *, facts: Facts, record: RunRecord, status: Status, view: View, peers: Peers | None
) -> Iterator[Watchdog]:
    """The watchdog of a run; where it ends the process, the record says so, and the other ranks hear of it."""
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
    if isinstance(error, NoCheckpoint) and record.take_back():
        status.put(state="finished", exit_code=0, now=True)
        return None
    state = "interrupted" if isinstance(error, (Interrupted, Stopped)) else "failed"
    status.put(state=state, exit_code=error.exit_code, reason=error.what, now=True)
    try:
        record.end(state, exit_code=error.exit_code, error=redact.without(str(error), redact.of(os.environ)))
    except (OSError, Locked) as problem:
        return str(problem)
    return None
