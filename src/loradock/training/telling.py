"""What happens in training is told to all who want to know: the record, the status, the trackers and the person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from loradock import termination_log
from loradock.plan.plan import Plan
from loradock.training.job import (
    Decided,
    Doing,
    Dtypes,
    Emit,
    EvalResult,
    Event,
    Job,
    Saved,
    Shrunk,
    StepDone,
    StepResult,
)
from loradock.training.observers.monitoring.alerts import PACK, UNPADDED, Alert
from loradock.training.observers.monitoring.monitor import Monitor, sampler_of
from loradock.training.observers.trackers import open_all
from loradock.training.run_dir.record import RunRecord
from loradock.training.run_dir.status import Status

NOT_TRACKED = ("step", "phases", "rank_seconds")
"""Of a metric line: what is no number to draw."""


class View(Protocol):
    """What a person watches. Every method is called on rank 0 only."""

    def note(self, text: str) -> None:
        """One line of text."""

    def stage(self, text: str) -> None:
        """A stage begins."""

    def prepared_rows(self, rows: int, tokens: int) -> None:
        """Rows and tokens prepared so far."""

    def plan(self, plan: Plan) -> None:
        """The plan was made."""

    def event(self, event: Event) -> None:
        """Something happened in training."""


@contextmanager
def told(job: Job, *, record: RunRecord, status: Status, view: View) -> Iterator[Emit]:
    """A function that passes each event on; the trackers are open while it is."""
    config = job.config
    opened = open_all(
        config.logging.trackers if record.is_writing else (),
        directory=job.directory,
        project=config.logging.project,
        name=job.directory.name,
        config=config.model_dump(mode="json"),
    )

    def emit(event: Event) -> None:
        keep(event, record=record, status=status)
        if isinstance(event, (StepResult, EvalResult)):
            kind = "train" if isinstance(event, StepResult) else "eval"
            values = {f"{kind}/{name}": value for name, value in asdict(event).items() if name not in NOT_TRACKED}
            for tracker in opened:
                tracker.log(values, step=event.step)
        view.event(event)
        if watching:
            watching.event(event)

    state = "failed"
    try:
        with monitored(job, record=record, view=view) as watching:
            yield emit
        state = "finished"
    finally:
        for tracker in opened:
            tracker.close(status=state)


@contextmanager
def monitored(job: Job, *, record: RunRecord, view: View) -> Iterator[Monitor | None]:
    """Samples of card and host while training, and alerts told once each; by rank 0 alone, and not where it is off."""
    every_seconds = job.config.logging.monitor_seconds
    if not every_seconds or not record.is_writing:
        yield None
        return

    def tell(alert: Alert, so_far: list[dict[str, Any]]) -> None:
        view.note(f"alert: {alert.what} (to try: {alert.remedy})")
        record.put(alerts=so_far)

    sampler = sampler_of(
        job.directory,
        every_seconds=every_seconds,
        card=0 if job.plan.device.value == "cuda" else None,
        cpus=record.content["facts"]["cpus"],
        fence=record.fence,
    )
    remedy = remedy_for_padding(engine=job.plan.engine.value, is_packed=job.plan.packing.value)
    before = record.content.get("alerts", ())
    with Monitor(sampler, tell=tell, before=before, against_padding=remedy) as monitor:
        yield monitor
        monitor.look()
    if sampler.problem:
        view.note(f"warning: {sampler.problem}")


def remedy_for_padding(*, engine: str, is_packed: bool) -> str:
    """What of it is not on already; the fast engine pads nothing but packs, on a card, to even shapes."""
    if engine == "fast":
        return "a larger train.micro_batch: packs are filled up to even shapes"
    return UNPADDED if is_packed else PACK


def keep(event: Event, *, record: RunRecord, status: Status) -> None:
    """Write what is to be kept of an event into the run directory."""
    match event:
        case StepDone():
            status.put(state="training", step=event.step)
        case StepResult():
            record.metric("train", asdict(event))
            status.put(loss=event.loss)
        case EvalResult():
            record.metric("eval", asdict(event))
        case Doing():
            status.put(state=event.what, step=event.step, now=True)
        case Saved():
            record.has_committed = True
            line = {"step": event.step, "directory": str(event.directory), "seconds": event.seconds}
            record.metric("checkpoint", line)
            status.put(step=event.step, last_checkpoint=event.directory.name, now=True)
            termination_log.note(last_checkpoint=event.directory.name)
        case Dtypes():
            record.put(dtypes=event.found)
        case Decided():
            found = {each["name"]: each for each in record.content.get("engine", [])}
            found |= {decision.name: asdict(decision) for decision in event.decisions}
            record.put(engine=list(found.values()))
        case Shrunk():
            record.rewind(event.step)
            record.put(shrunk=[*record.content.get("shrunk", []), asdict(event)])
