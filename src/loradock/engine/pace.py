"""What a process takes for its own part of a step: its passes, without waiting for the others.

On a card the passes end long after they were asked for, so two events on its stream hold the time; they are read after
the step, when they have come anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Pace:
    """Seconds of own passes since the last `taken()`."""

    def __init__(self, device: torch.device) -> None:
        self._is_on_card = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._seconds = 0.0

    @contextmanager
    def own(self) -> Iterator[None]:
        """Inside are the passes of one step."""
        began = time.monotonic()
        if self._is_on_card:
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        yield
        if self._is_on_card:
            self._events[1].record()
        else:
            self._seconds += time.monotonic() - began

    def settle(self) -> None:
        """After something of this step was read back from the card: its events have come."""
        if self._is_on_card:
            first, last = self._events
            self._seconds += first.elapsed_time(last) / 1000

    def taken(self) -> float:
        """The seconds, which begin anew."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
