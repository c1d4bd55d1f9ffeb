"""What a process takes for its own part of a step: its passes, without waiting for the others.

On a GPU the passes end long after they were asked for, so events on its stream hold the time; they are read after the
step, when they have come anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Pace:
    """Seconds of own passes since the last `taken()`."""

    def __init__(self, device: torch.device) -> None:
        self._is_on_gpu = device.type == "cuda"
        self._is_inside = False
        self._passes: list[tuple[Any, Any]] = []
        self._waits: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextmanager
    def own(self) -> Iterator[None]:
        """Inside are the passes of one step."""
        began, self._is_inside = self._now(), True
        try:
            yield
        finally:
            self._is_inside = False
        self._passes.append((began, self._now()))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside the passes: they wait here for the other processes, and this does not count."""
        began = self._now()
        yield
        if self._is_inside:
            self._waits.append((began, self._now()))

    def settle(self) -> None:
        """After something of this step was read back from the GPU: its events have come."""
        self._seconds += sum(map(self._between, self._passes)) - sum(map(self._between, self._waits))
        self._passes, self._waits = [], []

    def taken(self) -> float:
        """The seconds, which start again."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _now(self) -> Any:
        if not self._is_on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, span: tuple[Any, Any]) -> float:
        first, last = span
        return first.elapsed_time(last) / 1000 if self._is_on_gpu else last - first
