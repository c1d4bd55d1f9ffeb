"""Passes each event of training on: to the record, the status, the trackers, the monitor and the screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from loradock.catalog import engines
from loradock.process import termination_log
from loradock.training.context import RunContext
from loradock.training.events import (
    Decided,
    Doing,
    Dtypes,
    Emit,
    EvalResult,
    Event,
    Saved,
    Shrunk,
    StepDone,
    StepResult,
)
from loradock.training.job import Job
from loradock.training.observers.monitoring.alerts import PACK, UNPADDED, Alert
from loradock.training.observers.monitoring.monitor import Monitor, sampler_of
from loradock.training.observers.tracking import Tracking
from loradock.training.run_dir.record import RunRecord
from loradock.training.run_dir.status import Status

NOT_TRACKED = ("step", "steps", "phases", "rank_seconds")
"""Of a metric line: what is no number to draw."""


@contextmanager
def told(job: Job, context: RunContext) -> Iterator[Emit]:
    """A function that passes each event on; the trackers are open while it is."""
    config, record, view = job.config, context.record, context.view
    tracking = Tracking(
        config.logging.trackers if record.is_writing else (),
        directory=job.directory,
        project=config.logging.project,
        settings=config.model_dump(mode="json"),
        note=view.note,
    )

    def emit(event: Event) -> None:
        keep(event, record=record, status=context.status)
        if isinstance(event, (StepResult, EvalResult)):
            kind = "train" if isinstance(event, StepResult) else "eval"
            line = event.line()
            values = {f"{kind}/{name}": value for name, value in line.items() if name not in NOT_TRACKED}
            tracking.log(values, step=event.step)
        tracking.look()
        view.event(event)
        if watching:
            watching.event(event)

    with tracking, monitored(job, context) as watching:
        yield emit


@contextmanager
def monitored(job: Job, context: RunContext) -> Iterator[Monitor | None]:
    """Samples of GPU and host while training, and alerts, each once; by rank 0 alone, and not where it is off."""
    record, view = context.record, context.view
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
        gpu=0 if job.plan.device.value == "cuda" else None,
        cpus=record.content["facts"]["cpus"],
        fence=record.fence,
    )
    remedy = remedy_for_padding(engines.of(job.plan.engine.value), is_packed=job.plan.packing.value)
    before = record.content.get("alerts", ())
    with Monitor(sampler, tell=tell, before=before, against_padding=remedy) as monitor:
        yield monitor
        monitor.look()
    if sampler.problem:
        view.note(f"warning: {sampler.problem}")


def remedy_for_padding(engine: engines.Engine, *, is_packed: bool) -> str:
    """What of it is not on already; the fast backend pads nothing but packs, on a GPU, to even shapes."""
    if engine.always_packs:
        return "a larger train.micro_batch: packs are filled up to even shapes"
    return UNPADDED if is_packed else PACK


def keep(event: Event, *, record: RunRecord, status: Status) -> None:
    """Write what is to be kept of an event into the run directory."""
    match event:
        case StepDone():
            status.put(state="training", step=event.step)
        case StepResult():
            record.metric("train", event.line())
            status.put(loss=event.loss)
        case EvalResult():
            record.metric("eval", event.line())
        case Doing():
            status.put(state=event.what, step=event.step, now=True)
        case Saved():
            record.has_committed = True
            record.metric("checkpoint", asdict(event) | {"directory": str(event.directory)})
            status.put(last_checkpoint=event.directory.name, now=True)
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
