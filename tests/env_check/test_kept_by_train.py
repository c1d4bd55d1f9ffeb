"""`train` itself, twice: the second start takes what the first has proven, and says from where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from env_check.linked_venv import left_alone
from env_check.test_kept import KEPT
from proven import OPTION

from loradock.env_check.kept import NAME
from loradock.machine import marks


def trained(folder: Path, output: str, *options: str) -> tuple[str, dict[str, Any]]:
    """What a demo of one step said, and what its record has of the environment."""
    command = [sys.executable, "-m", "loradock", "train", "--demo", "--max-steps", "1", "--output", output, *options]
    env = {**os.environ, "LORADOCK_CACHE": str(folder / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = (folder / output).glob("*/run.json")
    return done.stderr, json.loads(record.read_text(encoding="utf-8"))["env_check"]


def test_a_second_run_computes_what_is_about_the_moment_alone(tmp_path: Path) -> None:
    names = {check.name for check in KEPT}
    with left_alone():
        time.sleep(marks.SETTLED_NS / 1e9)
        said, first = trained(tmp_path, "one")
        assert first["kept"]["taken"] == {}
        assert "because of no proof yet" in said
        said, second = trained(tmp_path, "two")
        assert second["kept"]["taken"].keys() == names, second["kept"]["computed"]
        assert set(second["kept"]["computed"].values()) == {"the moment"}
        assert f"environment: {len(names)} checks proven 2" in said
        assert str(tmp_path / "cache" / NAME) in said
        assert {(f["check"], f["what"]) for f in second["findings"]} >= {
            (f["check"], f["what"]) for f in first["findings"] if f["check"] in names
        }


def test_a_full_look_and_none_exclude_one_another(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loradock", "train", "--demo", "--full-env-check", OPTION]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 64
    assert f"--full-env-check and {OPTION} cannot be used together" in done.stderr
