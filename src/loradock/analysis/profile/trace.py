"""Reads the Chrome trace that torch's profiler writes: operators, named ranges, and what the device did.

Times are microseconds of the trace's own clock, as the format has them ("Trace Event Format", Google; complete events,
`ph` X). Kineto's categories and arguments (`cat`, `correlation`) were read from traces of torch 2.10; a GPU's from its
documentation, since none was at hand.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loradock.analysis.profile.ranges import PREFIX

KINDS = {
    "cpu_op": "operator",
    "user_annotation": "range",
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"
OPTIMIZER_RANGE = f"{PREFIX}optimizer"


@dataclass(frozen=True, slots=True)
class Event:
    """Something with a beginning and a duration. `kind` is one of KINDS; `correlation` ties a kernel to its launch."""

    name: str
    kind: str
    start: float
    duration: float
    thread: Any
    correlation: int | None = None

    @property
    def end(self) -> float:
        """When it was over."""
        return self.start + self.duration


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The recorded steps: (start, end) of each, operators and ranges of the host, what the device did, and launches."""

    steps: Sequence[tuple[float, float]]
    host: Sequence[Event]
    device: Sequence[Event]
    launches: dict[int, Event] = field(default_factory=dict[int, Event])

    @property
    def window(self) -> float:
        """Microseconds of all recorded steps."""
        return self.steps[-1][1] - self.steps[0][0] if self.steps else 0.0

    @property
    def busy(self) -> float:
        """Microseconds in which the device did something: the union of all that it did."""
        return union((event.start, event.end) for event in self.device)

    def active(self) -> Active:
        """Which of our ranges are open at a time."""
        return Active([event for event in self.host if event.kind == "range" and event.name.startswith(PREFIX)])

    def begun(self, event: Event) -> float:
        """When the host asked for it: the launch of a kernel, the beginning of an operator."""
        launch = self.launches.get(event.correlation) if event.correlation is not None else None
        return launch.start if launch else event.start


def read(file: Path) -> Trace:
    """The trace in a file, .json or .json.gz."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as stream:
        return parsed(json.load(stream)["traceEvents"])


def parsed(lines: Iterable[dict[str, Any]]) -> Trace:
    """The trace of these events; what began outside the recorded steps is left out."""
    events = [event_of(line) for line in lines if line.get("ph") == "X" and line.get("cat") in KINDS]
    steps = sorted((event.start, event.end) for event in events if event.name.startswith(STEP))
    first, last = (steps[0][0], steps[-1][1]) if steps else (0.0, float("inf"))
    launches = {
        event.correlation: event for event in events if event.kind == "launch" and event.correlation is not None
    }
    trace = Trace(steps=steps, host=[], device=[], launches=launches)
    inside = [event for event in events if first <= trace.begun(event) < last and not event.name.startswith(STEP)]
    host = [event for event in inside if event.kind in ("operator", "range")]
    device = [event for event in inside if event.kind in ("kernel", "copy")]
    return Trace(steps=steps, host=host, device=device, launches=launches)


def event_of(line: dict[str, Any]) -> Event:
    """One complete event; torch's name of an optimiser's step becomes ours."""
    name = str(line["name"])
    return Event(
        name=OPTIMIZER_RANGE if name.startswith(OPTIMIZER_STEP) else name,
        kind=KINDS[line["cat"]],
        start=float(line["ts"]),
        duration=float(line.get("dur", 0.0)),
        thread=(line.get("pid"), line.get("tid")),
        correlation=line.get("args", {}).get("correlation"),
    )


class Active:
    """The open ranges at any time, the outermost first, without their prefix."""

    def __init__(self, events: Sequence[Event]) -> None:
        edges = [(event.start, 1, event) for event in events] + [(event.end, 0, event) for event in events]
        edges.sort(key=lambda edge: (edge[0], edge[1], -edge[2].duration))
        open_now: list[Event] = []
        self.times: list[float] = []
        self.names: list[tuple[str, ...]] = []
        for time, is_start, event in edges:
            if is_start:
                open_now.append(event)
            else:
                open_now.remove(event)
            self.times.append(time)
            self.names.append(tuple(event.name.removeprefix(PREFIX) for event in open_now))

    def at(self, time: float) -> tuple[str, ...]:
        """Those open at this time."""
        place = bisect.bisect_right(self.times, time) - 1
        return self.names[place] if place >= 0 else ()


@dataclass
class Nested:
    """An event of the host among others of its thread: the names around it, and the time that is its own."""

    event: Event
    path: tuple[str, ...]
    own: float


def nested(events: Iterable[Event]) -> Iterator[Nested]:
    """Each event with the path to it, itself last, and its own time: its duration without that of those inside."""
    threads: dict[Any, list[Event]] = {}
    for event in events:
        threads.setdefault(event.thread, []).append(event)
    for members in threads.values():
        members.sort(key=lambda event: (event.start, -event.duration))
        stack: list[Nested] = []
        for event in members:
            while stack and event.start >= stack[-1].event.end:
                yield stack.pop()
            if stack:
                stack[-1].own -= min(event.duration, stack[-1].event.end - event.start)
            path = (*stack[-1].path, event.name) if stack else (event.name,)
            stack.append(Nested(event=event, path=path, own=event.duration))
        yield from reversed(stack)


def union(spans: Iterable[tuple[float, float]]) -> float:
    """How long the union of intervals is."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
