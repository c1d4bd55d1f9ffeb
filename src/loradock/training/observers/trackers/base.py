"""The type of an experiment tracker: opened at the start of a run, given metrics by step, closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Receives what a run measures."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record metrics of one optimiser step; names as in `train/loss`."""
        ...

    def close(self, *, status: str) -> None:
        """Flush and end; `status` is how the run ended."""
        ...


Open = Callable[[Path, str, str, Mapping[str, Any]], Tracker]
"""(run directory, project, run name, configuration) -> Tracker."""
