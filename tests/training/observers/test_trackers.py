"""What a tracker lacks is told before the machine is looked at; a server that is away costs no run a step."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import mlflow_server
import pytest
from faults.forking import Command, Forking
from proven import unchecked

from loradock.config.schema import RunConfig
from loradock.config.sections.progress import TrackerName
from loradock.errors import EnvironmentUnfit
from loradock.training.observers import trackers
from loradock.training.observers.trackers import TRACKERS
from loradock.training.observers.tracking import Tracker, Tracking

CONFIG = RunConfig.model_validate({"model": {"name": "m"}, "data": {"sources": [{"path": "d"}]}, "device": "cpu"})
SETTINGS = CONFIG.model_dump(mode="json")
KEY = "0" * 40
SHORT = "from loradock.training.observers import tracking\ntracking.PATIENCE_SECONDS = {}"
"""The test need not wait the 60 s of users."""
AWAY = {
    "mlflow hangs": ("mlflow", mlflow_server.hanging, "has not answered for 6 s"),
    "mlflow refuses": ("mlflow", mlflow_server.refusing, "has not answered for 6 s"),  # its library tries for minutes
    "wandb hangs": ("wandb", mlflow_server.hanging, "has not answered for 6 s"),
    "wandb refuses": ("wandb", mlflow_server.refusing, "has not answered for 6 s"),
}
STEPS = 6


def test_the_schema_names_the_trackers_of_the_table_and_of_accelerate() -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    assert set(get_args(TrackerName)) == set(TRACKERS) == set(LOGGER_TYPE_TO_CLASS)


def test_all_trackers_that_are_not_installed_are_told_at_once_with_what_installs_them() -> None:
    absent = [name for name, (package, _) in TRACKERS.items() if importlib.util.find_spec(package) is None]
    assert len(absent) > 1, "the test needs two trackers that are not installed"
    with pytest.raises(EnvironmentUnfit) as told:
        trackers.check(["tensorboard", *absent])
    assert f"tracker not installed: {', '.join(absent)}\n" in str(told.value)
    assert told.value.hint == f"pip install {' '.join(sorted(name.replace('_', '-') for name in absent))}"


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("variables", "is_refused"),
    [({}, True), ({"WANDB_MODE": "offline"}, False), ({"WANDB_API_KEY": KEY}, False), ({"NETRC": "netrc"}, False)],
    ids=str,
)
def test_wandb_without_a_login_is_told_before_anything_is_read(
    variables: dict[str, str], is_refused: bool, tmp_path: Path, llama: Path
) -> None:
    (tmp_path / "netrc").write_text(f"machine wandb.example login user password {KEY}\n", encoding="utf-8")
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


def start(place: Path, forking: Forking, *sets: str, inputs: tuple[Path, Path], code: str, address: str) -> Command:
    """A training in `place` whose trackers are at an address."""
    place.mkdir()
    model, rows = inputs
    words = [word for setting in ("train.global_batch=8", "logging.every=1", *sets) for word in ("--set", setting)]
    skip = unchecked("what is asked of the network is the subject")
    given = ("train", "--model", str(model), "--data", str(rows), *words, "--output", "out", skip)
    wandb = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": address, "WANDB_MODE": "online"}  # scripts/test says offline
    return forking.start(place, *given, code=code, MLFLOW_TRACKING_URI=address, **wandb)


@pytest.fixture(scope="module")
def away(
    tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path, forking: Forking
) -> Iterator[dict[str, Command]]:
    """A run for each server that is away: they all start at once, since they only wait."""
    folder, started = tmp_path_factory.mktemp("away"), {}
    with ExitStack() as servers:
        for name, (tracker, server, _) in AWAY.items():
            started[name] = start(
                folder / name.replace(" ", "-"),
                forking,
                f"train.max_steps={STEPS}",
                f"logging.trackers=[{tracker}]",
                inputs=(llama, rows),
                code=SHORT.format(6),
                address=servers.enter_context(server()),
            )
        yield started


@pytest.mark.parametrize("name", AWAY)
@pytest.mark.thin(6)
def test_a_server_that_is_away_costs_one_warning_and_a_bounded_wait_at_the_end(
    name: str, away: dict[str, Command]
) -> None:
    tracker, _, told = AWAY[name]
    command = away[name]
    assert command.finish(seconds=240) == 0, command.text()
    text = command.text()
    warnings = [line for line in text.splitlines() if line.startswith("warning: ") and "tracker" in line]
    lacks = f"lacks {STEPS} of {STEPS} metric lines; metrics.jsonl has all"
    assert warnings == [
        f"warning: tracker {tracker} {told}; the run continues, and metrics.jsonl has every line",
        f"warning: tracker {tracker} did not finish in time, and {lacks}",
    ], text
    record = json.loads((command.log.parent / "out" / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "finished"
    assert record["timings_seconds"]["training"] < 60
    assert not command.left_behind()


@pytest.mark.thin(6)
def test_a_server_that_dies_in_the_middle_costs_what_it_did_not_take(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    with mlflow_server.answering(dies_after=2) as server:
        sets = (f"train.max_steps={STEPS}", "logging.trackers=[mlflow, tensorboard]")
        given = {"inputs": (llama, rows), "code": SHORT.format(30), "address": server.address}
        command = start(tmp_path / "run", forking, *sets, **given)
        assert command.finish(seconds=240) == 0, command.text()
    assert server.steps[:2] == [1, 2]
    assert "warning: tracker mlflow did not finish in time, and lacks " in command.text()
    assert f" of {STEPS} metric lines; metrics.jsonl has all" in command.text()
    assert "tracker tensorboard" not in command.text()
    assert list((tmp_path / "run" / "out" / "tensorboard").rglob("events.*"))


@pytest.mark.thin(6)
def test_a_stop_waits_a_few_seconds_for_a_tracker_that_hangs(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    with mlflow_server.hanging() as address:
        sets = ("train.max_steps=100000", "logging.trackers=[mlflow]")
        command = start(tmp_path / "run", forking, *sets, inputs=(llama, rows), code="", address=address)
        assert command.wait_until(lambda: "step 3/" in command.text(), seconds=120), command.text()
        command.send(signal.SIGTERM)
        began = time.monotonic()
        assert command.finish(seconds=60) == 75, command.text()
        assert time.monotonic() - began < 25


@pytest.mark.full
def test_two_ranks_do_not_wait_for_a_server_that_hangs(tmp_path: Path, llama: Path, rows: Path) -> None:
    words = ["train", "--model", str(llama), "--data", str(rows), "--max-steps", "12", "--output", "out"]
    sets = ["--batch-size", "8", "--set", "logging.trackers=[mlflow]", "--set", "logging.every=1"]
    skip = unchecked("the network is the subject")
    with mlflow_server.hanging() as address:
        command = [sys.executable, "-m", "loradock", "launch", "--nproc", "2", "--", *words, *sets, skip]
        environment = os.environ | {"MLFLOW_TRACKING_URI": address, "LORADOCK_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "tracker mlflow has not answered for 60 s; the run continues" in done.stderr


@pytest.mark.thin(6)
def test_a_tracker_that_cannot_be_opened_is_told_once_and_the_others_get_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tensorboard").write_text("a file in the place of its folder", encoding="utf-8")
    told: list[str] = []
    names = ("tensorboard", "mlflow")
    with Tracking(names, directory=tmp_path, project="p", settings=SETTINGS, note=told.append) as tracking:
        tracking.log({"train/loss": 1.0}, step=1)
    assert told[0].startswith("warning: tracker tensorboard does not open: ")
    assert told[1:] == ["warning: tracker tensorboard lacks 1 of 1 metric lines; metrics.jsonl has all"]
    (loss,) = (tmp_path / "mlruns").glob("*/*/metrics/train/loss")
    assert loss.read_text(encoding="utf-8").split()[1:] == ["1.0", "1"]


@pytest.mark.thin(6)
def test_mlflow_keeps_that_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mlflow_server.answering() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        told: list[str] = []
        tracking = Tracking(["mlflow"], directory=tmp_path, project="p", settings=SETTINGS, note=told.append)
        with pytest.raises(ZeroDivisionError), tracking:
            tracking.log({"train/loss": 1 / 0}, step=1)
        assert (server.status, told) == ("FAILED", [])


@pytest.mark.thin(6)
def test_a_trainer_that_is_killed_leaves_a_run_that_failed_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mlflow_server.answering() as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.address)
        tracker = Tracker("mlflow", directory=tmp_path, project="p", settings=SETTINGS)
        tracker.log({"train/loss": 1.0}, step=1)
        tracker.channel.close()  # what the kernel does for one that was killed
        assert tracker.process.wait(timeout=120) == 0
        assert (server.steps, server.status) == ([1], "FAILED")
