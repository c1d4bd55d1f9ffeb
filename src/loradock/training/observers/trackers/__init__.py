"""The table of experiment trackers. To add one: a module with `open_tracker`, its line here, its name in the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loradock.errors import EnvironmentUnfit
from loradock.training.observers.trackers import mlflow, tensorboard, wandb
from loradock.training.observers.trackers.base import Open, Tracker

TRACKERS: dict[str, Open] = {
    "tensorboard": tensorboard.open_tracker,
    "wandb": wandb.open_tracker,
    "mlflow": mlflow.open_tracker,
}


def open_all(
    names: Sequence[str], *, directory: Path, project: str, name: str, config: Mapping[str, Any]
) -> list[Tracker]:
    """Open the trackers that were asked for; EnvironmentUnfit with the remedy where a package is missing."""
    opened: list[Tracker] = []
    for tracker in names:
        try:
            opened.append(TRACKERS[tracker](directory, project, name, config))
        except ImportError as error:
            raise EnvironmentUnfit(
                f"tracker {tracker} is not installed ({error})", hint="pip install 'loradock[track]'"
            ) from error
    return opened
