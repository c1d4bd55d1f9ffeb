"""MLflow; without MLFLOW_TRACKING_URI a file store in the run directory, which `mlflow migrate-filestore` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loradock.training.observers.trackers.base import Tracker

LONGEST_PARAM = 500


class MLflow:
    """One MLflow run."""

    def __init__(self, directory: Path, project: str, name: str, config: Mapping[str, Any]) -> None:
        import mlflow

        server = os.environ.get("MLFLOW_TRACKING_URI")
        if not server:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        self.client = mlflow.MlflowClient(server or (directory / "mlruns").resolve().as_uri())
        found = self.client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self.client.create_experiment(project)
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in flat(config):
            self.client.log_param(self.run, key, str(value)[:LONGEST_PARAM])

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Record metrics of one optimiser step."""
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def close(self, *, status: str) -> None:
        """Flush and end."""
        self.client.set_terminated(self.run, "FINISHED" if status == "finished" else "FAILED")


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def open_tracker(directory: Path, project: str, name: str, config: Mapping[str, Any]) -> Tracker:
    """An MLflow run at MLFLOW_TRACKING_URI, or in the run directory."""
    return MLflow(directory, project, name, config)
