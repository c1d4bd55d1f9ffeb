"""What watches a run: the sampler beside it, and from time to time a look whether there is something to tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loradock.machine import Host
from loradock.training.events import Event, StepDone, StepResult
from loradock.training.observers.monitoring import alerts
from loradock.training.observers.monitoring.alerts import Alert
from loradock.training.observers.monitoring.process import ProcessReader
from loradock.training.observers.monitoring.sampler import Sampler, Source

LOOK_SECONDS = 30.0
"""Between two looks for alerts; one takes a few milliseconds."""
KEPT_LINES = 4_000


class Monitor:
    """A context around a training. `tell` is called in the caller's thread, once for each alert, with all so far.
    `against_padding` is the remedy that fits the plan.

    `before` are the alerts that an earlier attempt at the run told, as `tell` got them.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        tell: Callable[[Alert, list[dict[str, Any]]], None],
        before: Sequence[dict[str, Any]] = (),
        against_padding: str = alerts.PACK,
    ) -> None:
        self.sampler = sampler
        self.tell = tell
        self.against_padding = against_padding
        self.lines: list[dict[str, Any]] = []
        self.told = {alert["name"]: alert for alert in before}
        self.looked = time.monotonic()

    def __enter__(self) -> Self:
        self.sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sampler.stop()

    def event(self, event: Event) -> None:
        """Something happened in training. Looks for alerts after a metric line, when it is time again."""
        if isinstance(event, StepDone):
            self.sampler.seen = {**self.sampler.seen, "step": event.step}
        elif isinstance(event, StepResult):
            share = event.phases.get("data", 0.0) / event.seconds
            self.sampler.seen = {**self.sampler.seen, "step": event.step, "data_share": round(share, 4)}
            self.lines.append(event.line())
            if len(self.lines) > KEPT_LINES:
                del self.lines[: KEPT_LINES // 2]
            if time.monotonic() - self.looked >= LOOK_SECONDS:
                self.look()

    def look(self) -> None:
        """Tell what is new. A look that fails is the sampler's problem, and no more is looked for."""
        try:
            found = alerts.found(self.lines, self.sampler.latest(), against_padding=self.against_padding)
        except Exception as error:  # noqa: BLE001  a run never ends for its monitoring
            self.sampler.fail(error)
            found = []
        for alert in found:
            if alert.name not in self.told:
                self.told[alert.name] = {**asdict(alert), "step": self.lines[-1]["step"] if self.lines else 0}
                self.tell(alert, list(self.told.values()))
        self.looked = time.monotonic()


def sources_of(host: Host, *, gpu: int | None, cpus: int) -> tuple[list[Source], Callable[[], None]]:
    """What a run on this GPU (its number among those of this process; None on a CPU) is sampled from."""
    process = ProcessReader(host, pid=os.getpid(), cpus=cpus)
    sampler = None if gpu is None else host.gpu_sampler(gpu)
    if sampler is None:
        return [process.sample], lambda: None
    return [sampler.sample, process.sample], sampler.close


def sampler_of(
    directory: Path, *, every_seconds: float, gpu: int | None, cpus: int, fence: Callable[[], None]
) -> Sampler:
    """The sampler of a run."""
    return Sampler(
        directory,
        every_seconds=every_seconds,
        open_sources=lambda: sources_of(Host(), gpu=gpu, cpus=cpus),
        fence=fence,
    )
