"""TensorBoard event files in the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loradock.training.observers.trackers.base import Tracker


class TensorBoard:
    """Writes scalars with torch's own SummaryWriter."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(directory / "tensorboard"))
        self.writer.add_text("config", f"```json\n{json.dumps(config, indent=2)}\n```")

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record metrics of one optimiser step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, *, status: str) -> None:
        """Flush and end."""
        self.writer.close()


def open_tracker(directory: Path, _project: str, _name: str, config: Mapping[str, Any]) -> Tracker:
    """Event files under `tensorboard/`; project and name are the directory's."""
    return TensorBoard(directory, config)
