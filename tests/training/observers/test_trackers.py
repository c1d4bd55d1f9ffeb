"""What is to be told of a tracker before training is told then; what fails later does not end the run."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from proven import unchecked

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


@pytest.mark.parametrize(
    ("variables", "is_refused"),
    [({}, True), ({"WANDB_MODE": "offline"}, False), ({"WANDB_API_KEY": "0" * 40}, False), ({"NETRC": "netrc"}, False)],
    ids=str,
)
def test_wandb_without_a_login_is_told_before_anything_is_read(
    variables: dict[str, str], is_refused: bool, tmp_path: Path, llama: Path
) -> None:
    (tmp_path / "netrc").write_text("machine wandb.example login user password " + "0" * 40 + "\n", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("{broken\n", encoding="utf-8")
    known = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    known |= {"HOME": str(tmp_path), "WANDB_BASE_URL": "https://wandb.example", "NETRC": ""} | variables
    words = ["train", "--model", str(llama), "--data", "rows.jsonl", "--set", "logging.trackers=[wandb]"]
    command = [sys.executable, "-m", "loradock", *words, "--output", "out", unchecked("it is refused before")]
    done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "no login for https://wandb.example" in done.stderr) == (
        71 if is_refused else 65,
        is_refused,
    )
    assert not (tmp_path / "out").exists()


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
