"""Weights & Biases; with WANDB_MODE=offline everything stays in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loradock.training.observers.trackers.base import Tracker


class WandB:
    """One W&B run."""

    def __init__(self, directory: Path, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        self.run = wandb.init(
            project=project,
            name=name,
            dir=str(directory),
            config=dict(config),
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, quiet=True),
        )

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record metrics of one optimiser step."""
        self.run.log(dict(values), step=step)

    def close(self, *, status: str) -> None:
        """Flush and end."""
        self.run.finish(exit_code=0 if status == "finished" else 1)


def open_tracker(directory: Path, project: str, name: str, config: Mapping[str, Any]) -> Tracker:
    """A W&B run, online or offline by WANDB_MODE."""
    return WandB(directory, project, name, config)
