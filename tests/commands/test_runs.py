"""`loradock runs`: what each run's own files say, also of one that was killed and one that cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from whole_runs import train

from loradock.commands.runs import runs
from loradock.errors import InputMissing

pytestmark = pytest.mark.thin(2)


def write(folder: Path, record: Any, **status: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "status.json").write_text(json.dumps(status), encoding="utf-8")
    return folder


def test_every_run_below_a_directory_is_told_with_its_state_steps_and_loss(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    (tmp_path / "a").mkdir()
    result = train(tmp_path / "a" / "done", "train.max_steps=3", "logging.every=1", model=llama, data=rows)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = {"host": os.uname().nodename, "state": "training", "step": 7, "total_steps": 9}
    write(tmp_path / "killed", {"status": "running", "started": "2026-01-01"}, pid=ended.pid, **here)
    write(tmp_path / "alive", {"status": "running", "started": "2026-01-02"}, pid=os.getpid(), **here)
    write(tmp_path / "broken", ["no record"])
    told = json.loads(CliRunner().invoke(runs, [str(tmp_path), "--json"]).output)
    found = {Path(run["directory"]).name: (run["state"], run["step"], run["total_steps"]) for run in told}
    assert found == {
        "done": ("finished", 3, 3),
        "killed": ("killed", 7, 9),
        "alive": ("training", 7, 9),
        "broken": ("unreadable", None, None),
    }
    assert told[-1]["loss"] == result.metrics[-1]["loss"]
    text = CliRunner().invoke(runs, [str(tmp_path)]).output.splitlines()
    assert len(text) == 5
    assert text[-1].startswith("finished")
    assert "3/3" in text[-1]


def test_a_directory_without_runs_says_so(tmp_path: Path) -> None:
    assert CliRunner().invoke(runs, [str(tmp_path)]).output == f"no run in {tmp_path}\n"


@pytest.mark.parametrize(("has_runs", "hint"), [(True, "hint: loradock runs"), (False, "hint: give the directory")])
def test_a_directory_that_is_not_there_is_answered_with_where_runs_are(
    has_runs: bool, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if has_runs:
        (tmp_path / "runs").mkdir()
    with pytest.raises(InputMissing, match="directory list does not exist") as refused:
        CliRunner().invoke(runs, ["list"], catch_exceptions=False)
    assert f"hint: {refused.value.hint}".startswith(hint)
