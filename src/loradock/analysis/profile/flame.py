"""Collapsed stacks of a trace: `outer;inner;innermost MICROSECONDS`, which speedscope and flamegraph.pl read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from loradock.analysis.profile.ranges import PREFIX
from loradock.analysis.profile.trace import Trace, nested


def of_host(trace: Trace) -> dict[str, float]:
    """Own microseconds by stack, of all the host's threads."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for event in nested(trace.host):
        seconds[joined(event.path)] += event.own
    return dict(seconds)


def of_device(trace: Trace) -> dict[str, float]:
    """Microseconds of the device by stack: the ranges around the launch, and what ran."""
    seconds: defaultdict[str, float] = defaultdict(float)
    active = trace.active()
    for event in trace.device:
        seconds[joined((*active.at(trace.begun(event)), event.name))] += event.duration
    return dict(seconds)


def joined(path: tuple[str, ...]) -> str:
    """One stack as text."""
    return ";".join(name.removeprefix(PREFIX).replace(";", ",") for name in path)


def collapsed(stacks: Mapping[str, float]) -> str:
    """A line a stack, the longest first; what rounds to nothing is left out."""
    ordered = sorted(stacks.items(), key=lambda item: -item[1])
    return "".join(f"{path} {round(self_seconds)}\n" for path, self_seconds in ordered if round(self_seconds))
