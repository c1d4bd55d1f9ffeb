"""The termination log: JSON that fits, whatever the error, and no secret in it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from env_check.conftest import namespace

from loradock.errors import DataError, DiskFull, LoradockError, Problem
from loradock.process import termination_log


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(termination_log.ENVIRONMENT, str(tmp_path / "log"))
    monkeypatch.setattr(termination_log, "_noted", {})
    return tmp_path / "log"


def written(log: Path) -> dict[str, Any]:
    assert log.stat().st_size <= 4096
    return json.loads(log.read_bytes())


def test_it_says_why_the_run_ended_and_how_far_it_came(log: Path) -> None:
    termination_log.note(directory=Path("/out/run-001"), step=3)
    termination_log.note(step=40, last_checkpoint="checkpoint-40", loss=float("inf"))
    assert termination_log.write(73, DiskFull("no space left for /out", hint="free space"), free_bytes=0) is None
    assert written(log) == {
        "exit_code": 73,
        "class": "DiskFull",
        "what": "no space left for /out",
        "hint": "free space",
        "directory": "/out/run-001",
        "step": 40,
        "last_checkpoint": "checkpoint-40",
        "loss": "inf",
        "free_bytes": 0,
    }


def test_a_later_end_replaces_an_earlier_longer_one(log: Path) -> None:
    termination_log.write(70, "x" * 900)
    termination_log.write(0, "finished")
    assert written(log) == {"exit_code": 0, "class": None, "what": "finished", "hint": None}


def test_of_many_problems_as_many_as_fit_are_kept_whole(log: Path) -> None:
    problems = [Problem(what="no text", file="rows.jsonl", line=line) for line in range(1, 5001)]
    termination_log.note(step=0)
    termination_log.write(65, DataError("bad rows", problems=problems))
    seen = written(log)
    assert seen["problem_count"] == 5000
    assert 90 < len(seen["problems"]) < 5000
    assert seen["problems"][-1] == f"rows.jsonl:{len(seen['problems'])}: no text"
    assert seen["step"] == 0


def test_it_fits_whatever_the_texts_are(log: Path) -> None:
    chance = random.Random(5)
    letters = ["a", "\0", "\x1b", '"', "\\", "\n", "é", "\u2028", "\U0001f40d", "\udc80", "界"]

    def text(most: int) -> str:
        return "".join(chance.choices(letters, k=chance.randrange(most)))

    for _ in range(100):
        problems = [Problem(what=text(500), file=text(80), line=3) for _ in range(chance.randrange(40))]
        error = LoradockError(text(5000), hint=text(5000), problems=problems)
        facts = {f"fact_{number}": text(3000) for number in range(chance.randrange(30))}
        assert termination_log.write(70, error, **facts) is None
        seen = written(log)
        assert seen["exit_code"] == 70
        assert seen["what"].removesuffix("...") == error.what[: len(seen["what"].removesuffix("..."))]


def test_a_secret_is_left_out_also_where_a_text_is_cut_in_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary" * 200
    monkeypatch.setenv("WANDB_API_KEY", canary)
    termination_log.note(address="https://me:swordfish@hub/x")
    problems = [Problem(what=f"refused {canary}")]
    termination_log.write(69, LoradockError("x" * 1200 + canary, hint=canary, problems=problems), header=canary)
    assert "canary" not in log.read_text()
    assert "swordfish" not in log.read_text()
    assert written(log)["hint"] == "<WANDB_API_KEY>"


@pytest.mark.parametrize("harm", ["absent folder", "folder", "pipe"])
def test_a_log_that_cannot_be_written_is_said_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    place = tmp_path / "log" / "file" if harm == "absent folder" else tmp_path / "log"
    if harm == "folder":
        place.mkdir()
    elif harm == "pipe":
        os.mkfifo(place)
    monkeypatch.setenv(termination_log.ENVIRONMENT, str(place))
    assert f"{place} cannot be written" in (termination_log.write(70, "x") or "")


def test_a_full_volume_is_said_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(termination_log.ENVIRONMENT, "/dev/full")
    assert "No space left" in (termination_log.write(70, "x") or "")


def in_a_pod(tmp_path: Path, *, mounted: Path | None) -> str:
    """What `write` answers without the variable, in a /dev of its own; the log is mounted into it, as a pod's is."""
    dev = tmp_path / "dev"
    dev.mkdir()
    script = f"mount -t tmpfs none '{dev}'; touch '{dev}/null'; mount --bind /dev/null '{dev}/null'"
    if mounted:
        mounted.touch()
        script += f"; touch '{dev}/termination-log'; mount --bind '{mounted}' '{dev}/termination-log'"
    program = "import os; from loradock.process import termination_log\n"
    program += "print(termination_log.write(75, 'stopped'), sorted(os.listdir('/dev')))"
    environ = {name: value for name, value in os.environ.items() if name != termination_log.ENVIRONMENT}
    command = [*namespace(f"{script}; mount --move '{dev}' /dev"), sys.executable, "-c", program]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ).stdout


def test_without_the_variable_the_log_of_kubernetes_is_written_where_it_is_mounted(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.write_text("x" * 5000)
    assert in_a_pod(tmp_path, mounted=mounted) == "None ['null', 'termination-log']\n"
    assert written(mounted)["exit_code"] == 75


def test_without_a_log_nothing_is_written(tmp_path: Path) -> None:
    assert in_a_pod(tmp_path, mounted=None) == "None ['null']\n"
