"""What is to be told of a tracker before training is told then; what fails later does not end the run."""

from __future__ import annotations

import importlib.util
import logging
import shutil
from pathlib import Path
from typing import get_args

import pytest

from loradock.config.schema import RunConfig, TrackerName
from loradock.errors import EnvironmentUnfit
from loradock.training.observers.trackers import TRACKERS, Tracker, open_all

CONFIG = RunConfig.model_validate({"model": {"name": "m"}, "data": {"sources": [{"path": "d"}]}, "device": "cpu"})


def opened(name: str, directory: Path) -> Tracker:
    (tracker,) = open_all([name], directory=directory, project="p", name="r", config=CONFIG.model_dump(mode="json"))
    return tracker


def test_the_schema_names_the_trackers_of_the_table_and_of_accelerate() -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(get_args(TrackerName)) == set(TRACKERS) == set(LOGGER_TYPE_TO_CLASS)


def test_all_trackers_that_are_not_installed_are_told_at_once_with_what_installs_them(tmp_path: Path) -> None:
    absent = [name for name, (package, _) in TRACKERS.items() if importlib.util.find_spec(package) is None]
    assert len(absent) > 1, "the test needs two trackers that are not installed"
    with pytest.raises(EnvironmentUnfit) as told:
        open_all(["tensorboard", *absent], directory=tmp_path, project="p", name="r", config={})
    assert f"tracker not installed: {', '.join(absent)}\n" in str(told.value)
    assert told.value.hint == f"pip install {' '.join(sorted(name.replace('_', '-') for name in absent))}"
    assert not list(tmp_path.iterdir())


def test_a_tracker_whose_server_does_not_answer_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(EnvironmentUnfit, match="tracker mlflow does not open") as told:
        opened("mlflow", tmp_path)
    assert "logging.trackers" in (told.value.hint or "")


def test_a_tracker_that_fails_while_training_is_told_once_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracker = opened("mlflow", tmp_path)
    tracker.log({"train/loss": 1.0}, step=1)
    shutil.rmtree(tmp_path / "mlruns")
    with caplog.at_level(logging.WARNING):
        tracker.log({"train/loss": 0.9}, step=2)
        tracker.log({"train/loss": 0.8}, step=3)
        tracker.close(status="finished")
    told = [record.getMessage() for record in caplog.records if record.name.endswith("trackers")]
    assert len(told) == 1
    assert told[0].startswith("tracker mlflow failed and gets nothing more: ")


def test_mlflow_keeps_that_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    opened("mlflow", tmp_path).close(status="failed")
    (kept,) = (tmp_path / "mlruns").glob("*/*/meta.yaml")
    assert "status: 4" in kept.read_text(encoding="utf-8")  # RunStatus.FAILED of MLflow's service.proto
