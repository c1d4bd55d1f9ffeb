"""What a trace says: seconds by part of the passes, by role, and by operator or kernel, for a mean recorded step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loradock.analysis.profile import ranges, roles
from loradock.analysis.profile.trace import Active, Event, Trace, nested

MICROSECOND = 1e-6
SHOWN_OPERATORS = 20


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Of a mean recorded step, in seconds: the `window`; `parts` of the passes and `roles`, on the device where there
    is one, else on the host; `busy`: when a GPU did something (None without one). `operators`: the longest, with role,
    seconds and count; one that serves several roles is listed in each. `passes` and `operations` are counts; `outside`:
    the host's time outside all operators.
    """

    window: float
    busy: float | None
    parts: dict[str, float]
    roles: dict[str, float]
    operators: list[dict[str, Any]]
    passes: float
    operations: float
    outside: float


def of(trace: Trace) -> Reading:
    """The reading of a trace with at least one step in it."""
    steps, active = len(trace.steps), trace.active()
    scale = MICROSECOND / steps
    by_role: defaultdict[str, float] = defaultdict(float)
    by_use: defaultdict[tuple[str, str], float] = defaultdict(float)
    counts: Counter[tuple[str, str]] = Counter()
    for name, self_seconds, names in timed(trace, active):
        role = roles.role_of(name, names)
        by_role[role] += self_seconds * scale
        by_use[name, role] += self_seconds * scale
        counts[name, role] += 1
    longest = sorted(by_use.items(), key=lambda item: -item[1])[:SHOWN_OPERATORS]
    inside = sum(event.own for event in nested(trace.host) if event.event.kind == "operator")
    return Reading(
        window=trace.window * scale,
        busy=trace.busy * scale if trace.device else None,
        parts={name: span * scale for name, span in parts(trace, active).items()},
        roles=dict(by_role),
        operators=[
            {"name": name, "role": role, "seconds": seconds, "count": counts[name, role] / steps}
            for (name, role), seconds in longest
        ],
        passes=passes(trace, active) / steps,
        operations=counts.total() / steps,
        outside=max(0.0, trace.window - inside) * scale,
    )


def timed(trace: Trace, active: Active) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """(name, own microseconds, open ranges) of all kernels and copies, or without a GPU of all operators."""
    if trace.device:
        for event in trace.device:
            yield event.name, event.duration, active.at(trace.begun(event))
        return
    for event in nested(trace.host):
        if event.event.kind == "operator":
            yield event.event.name, event.own, active.at(event.event.start)


def parts(trace: Trace, active: Active) -> dict[str, float]:
    """Microseconds by part of the passes: of what was launched in it on a GPU, else of the range itself."""
    seconds: defaultdict[str, float] = defaultdict(float)
    if trace.device:
        for event in trace.device:
            name = part_of(active.at(trace.begun(event)))
            if name is not None:
                seconds[ranges.TO_DEVICE if "HtoD" in event.name else name] += event.duration
    else:
        for event, name in of_passes(trace, active):
            seconds[name] += event.duration
    return dict(seconds)


def passes(trace: Trace, active: Active) -> int:
    """How many passes there were: each computes the loss once."""
    counts = Counter(name for _, name in of_passes(trace, active))
    return counts[ranges.HEAD] + counts[ranges.REPLAY] or counts[ranges.FORWARD]


def of_passes(trace: Trace, active: Active) -> Iterator[tuple[Event, str]]:
    """The ranges that are a part of the passes, with the name of the part."""
    for event in trace.host:
        name = event.name.removeprefix(ranges.PREFIX)
        if event.kind == "range" and name in ranges.PASSES and part_of(active.at(event.start)) == name:
            yield event, name


def part_of(names: tuple[str, ...]) -> str | None:
    """The part of the passes that these open ranges are in; None outside the passes."""
    if any(name in ranges.OUTSIDE for name in names):
        return None
    return next((name for name in names if name in ranges.PASSES), None)
