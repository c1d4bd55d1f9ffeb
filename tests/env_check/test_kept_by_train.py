"""This machine, which is well, looked at whole once: by `env-check`, then by `train`, which takes what was proven.

Three processes, cold as a user's, are what all these tests look at; the last is the demo as a newcomer starts it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from env_check.conftest import Examine, Examined
from env_check.linked_venv import left_alone
from env_check.test_kept import KEPT
from proven import OPTION

from loradock.env_check import CHECKS
from loradock.env_check.base import LOADED
from loradock.env_check.kept import NAME
from loradock.machine import marks

pytestmark = pytest.mark.thin(3, together=True)


@dataclass(frozen=True)
class Trained:
    """A training that ended well: what it said, and its record."""

    stdout: str
    stderr: str
    record: dict[str, Any]


@dataclass(frozen=True)
class Looks:
    """The machine looked at by `env-check`, then by two demos: the first trains one step, the second is whole."""

    folder: Path
    checked: Examined
    trained: tuple[Trained, Trained]


@pytest.fixture(scope="module")
def looks(examined: Examine, tmp_path_factory: pytest.TempPathFactory) -> Looks:
    folder = tmp_path_factory.mktemp("looks")
    env = {"LORADOCK_CACHE": str(folder / "cache"), "NO_COLOR": "1"}
    with left_alone():
        time.sleep(marks.SETTLED_NS / 1e9)
        checked = examined(cwd=folder, env=env)
        trained = trained_in(folder, env, "demo-001", "--max-steps", "1"), trained_in(folder, env, "demo-002")
    return Looks(folder=folder, checked=checked, trained=trained)


def trained_in(folder: Path, env: dict[str, str], name: str, *options: str) -> Trained:
    command = [sys.executable, "-m", "loradock", "train", "--demo", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | env, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((folder / "runs" / name / "run.json").read_text(encoding="utf-8"))
    return Trained(stdout=done.stdout, stderr=done.stderr, record=record)


def test_a_healthy_machine_raises_no_alarm(looks: Looks) -> None:
    first = looks.checked
    assert [finding for finding in first.content["findings"] if finding["severity"] != "ok"] == []
    assert (first.exit_code, first.content["worst"]) == (0, "ok")
    looked_at = set(first.content["seconds"])
    assert looked_at == {check.name for check in CHECKS if check.level != "bench" and check.needs == "nothing"}


@pytest.mark.thin(10)
def test_two_runs_agree(looks: Looks, examined: Examine) -> None:
    """All but `lock`, which reads each byte of the packages."""
    env = {"LORADOCK_CACHE": str(looks.folder / "cache"), "NO_COLOR": "1"}
    others = ",".join(set(looks.checked.content["seconds"]) - {"lock"})
    with left_alone():
        second = examined("--only", others, cwd=looks.folder, env=env)
    first = [finding for finding in looks.checked.content["findings"] if finding["check"] != "lock"]
    assert first == second.content["findings"]


def test_json_is_as_its_published_schema_says(looks: Looks) -> None:
    command = [sys.executable, "-m", "loradock", "env-check", "--schema"]
    schema = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    content = looks.checked.content
    validator.validate(content)
    for broken in ({"severity": "fatal"}, {"remedy": None}, {"check": "no-such"}):
        finding = {**content["findings"][0], **broken}
        assert list(validator.iter_errors({**content, "findings": [finding]}))


def test_a_passing_check_names_no_variable(looks: Looks) -> None:
    said = " ".join(f["what"] for f in looks.checked.content["findings"] if f["severity"] == "ok")
    suspects = ("BNB_CUDA_VERSION", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "HF_TOKEN")
    assert [name for name in suspects if name in said] == []


def test_a_run_takes_what_env_check_proved_and_computes_what_follows_from_its_configuration(looks: Looks) -> None:
    first = looks.trained[0].record["env_check"]
    of_any_run = {check.name for check in KEPT if {*check.depends_on} <= {*LOADED}}
    assert of_any_run >= {"lock", "libraries", "cuda-runtimes"}
    assert of_any_run <= first["kept"]["taken"].keys(), first["kept"]["computed"]
    assert "attention-kernels" in first["kept"]["computed"]
    assert "a change of the model" in looks.trained[0].stderr


def test_a_second_run_computes_what_is_about_the_moment_alone(looks: Looks) -> None:
    names = {check.name for check in KEPT}
    first, second = (trained.record["env_check"] for trained in looks.trained)
    assert second["kept"]["taken"].keys() == names, second["kept"]["computed"]
    assert set(second["kept"]["computed"].values()) == {"the moment"}
    said = looks.trained[1].stderr
    assert f"environment: {len(names)} checks proven 2" in said
    assert str(looks.folder / "cache" / NAME) in said
    assert {(f["check"], f["what"]) for f in second["findings"]} >= {
        (f["check"], f["what"]) for f in first["findings"] if f["check"] in names
    }


def test_the_demo_learns_and_starts_a_new_directory_each_time(looks: Looks) -> None:
    demo = looks.trained[1]
    last = demo.stdout.rstrip().splitlines()[-1]
    found = re.fullmatch(r"accuracy before: (\d+\.\d) %  after: (\d+\.\d) %", last)
    assert found, last
    assert float(found[2]) - float(found[1]) >= 50
    record = demo.record
    assert record["status"] == "finished"
    assert record["env_check"]["level"] == "compute"
    assert {finding["severity"] for finding in record["env_check"]["findings"]} <= {"ok", "warning"}
    taken = record["timings_seconds"]
    assert taken["env-check"] == record["env_check"]["seconds"] > 0
    assert taken["start"] > 0
    assert taken["total"] > taken["start"] + taken["env-check"] + taken["training"]
    assert f"finished: {record['outcome']['steps']} steps (last step) in {taken['total']:.0f} s, " in demo.stdout
    assert record["exam"]["after"]["accuracy"] == pytest.approx(float(found[2]), abs=0.05)
    assert sorted(path.name for path in (looks.folder / "runs").iterdir()) == ["demo-001", "demo-002"]


def test_a_full_look_and_none_exclude_one_another(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loradock", "train", "--demo", "--full-env-check", OPTION]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 64
    assert f"--full-env-check and {OPTION} cannot be used together" in done.stderr
