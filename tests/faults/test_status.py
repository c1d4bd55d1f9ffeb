"""status.json: whole at every moment, and never the reason why a run ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from env_check.conftest import namespace

from loradock.training.run_dir.status import Status

FULL = """
import json, sys
from pathlib import Path
from loradock.training.run_dir.status import Status
directory = Path(sys.argv[1])
status = Status(directory, run_id="a", is_writing=True)
said = [status.put(state="training", step=1)]
with (directory / "ballast").open("wb", buffering=0) as ballast:
    try:
        while ballast.write(b"x" * 4096): pass
    except OSError: pass
said += [status.put(now=True, step=step) for step in (2, 3)]
said += [sorted(each.name for each in directory.iterdir())]
(directory / "ballast").unlink()
said += [status.put(now=True, step=4)]
print(json.dumps([said, status.problem, json.loads((directory / "status.json").read_text())["step"],
                  sorted(each.name for each in directory.iterdir())]))
"""


def content(directory: Path) -> dict[str, object]:
    return json.loads((directory / "status.json").read_text())


def test_the_status_tells_where_the_run_is_and_how_it_ended(tmp_path: Path) -> None:
    status = Status(tmp_path, run_id="a1", is_writing=True)
    status.put(state="training", step=3, total_steps=10, loss=0.5)
    seen = content(tmp_path)
    assert (seen["run_id"], seen["state"], seen["step"], seen["pid"]) == ("a1", "training", 3, os.getpid())
    assert seen["exit_code"] is None
    status.put(state="interrupted", exit_code=75, reason="stopped by SIGTERM", last_checkpoint="checkpoint-3")
    seen = content(tmp_path)
    assert (seen["state"], seen["exit_code"], seen["last_checkpoint"], seen["loss"]) == (
        "interrupted",
        75,
        "checkpoint-3",
        0.5,
    )
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_steps_are_written_once_a_second_and_a_new_state_at_once(tmp_path: Path) -> None:
    status = Status(tmp_path, run_id="a", is_writing=True)
    status.put(state="training", step=1)
    first = (tmp_path / "status.json").stat().st_ino, content(tmp_path)
    for step in range(2, 200):
        status.put(state="training", step=step)
    assert ((tmp_path / "status.json").stat().st_ino, content(tmp_path)) == first
    status.put(state="saving")
    assert content(tmp_path)["step"] == 199
    time.sleep(1.05)
    status.put(step=200)
    assert content(tmp_path)["step"] == 200
    status.put(step=201, now=True)
    assert content(tmp_path)["step"] == 201


def test_a_reader_never_sees_half_of_it(tmp_path: Path) -> None:
    status = Status(tmp_path, run_id="a" * 4000, is_writing=True)
    status.put(step=0, now=True)
    is_over = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not is_over.is_set():
            seen.append(int(str(content(tmp_path)["step"])))

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=lambda: [status.put(step=n, now=True) for n in range(300)]) for _ in range(2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    is_over.set()
    reader.join()
    assert seen
    assert status.problem is None


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path) -> None:
    within = namespace(f"mount -t tmpfs -o size=64k none '{tmp_path}'")
    done = subprocess.run([*within, sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, problem, last_step, names = json.loads(done.stdout)
    assert said == [None, problem, None, ["ballast", "status.json"], None]
    assert problem == f"{tmp_path}/status.json cannot be written: No space left on device"
    assert last_step == 4
    assert names == ["status.json"]


def test_a_directory_that_is_gone_is_said_and_ends_nothing(tmp_path: Path) -> None:
    status = Status(tmp_path / "gone", run_id="a", is_writing=True)
    assert "No such file" in (status.put(state="failed", exit_code=74) or "")


def test_a_process_other_than_the_first_writes_none(tmp_path: Path) -> None:
    assert Status(tmp_path, run_id="a", is_writing=False).put(state="failed", now=True) is None
    assert not list(tmp_path.iterdir())


def test_what_json_has_not_is_text_and_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-7431-canary")
    status = Status(tmp_path, run_id="a", is_writing=True)
    status.put(loss=float("nan"), reason="the hub refused canary-7431-canary")
    assert content(tmp_path)["loss"] == "nan"
    assert content(tmp_path)["reason"] == "the hub refused <HF_TOKEN>"


def test_a_part_or_state_that_nobody_knows_is_a_bug(tmp_path: Path) -> None:
    status = Status(tmp_path, run_id="a", is_writing=True)
    with pytest.raises(TypeError, match="no stepp"):
        status.put(stepp=1)
    with pytest.raises(ValueError, match="trainin"):
        status.put(state="trainin")
