"""P1, P2, P5, P6 and P19 while a commit runs beside the steps: its thread is slow, killed, refused, or dies.

`code` that the run does first puts the fault into one system call of the thread that commits, and makes each call there
take its time, so that training is steps further meanwhile. The campaign does the same at every call, by strace.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.conftest import Trial
from faults.forking import Command, Forking
from proven import unchecked

from loradock.errors import DiskFull, LoradockError, Stopped, StorageError
from loradock.training.checkpoint.store import found

STEPS, SAVE_EVERY = 16, 4
RUN = (
    f"train.max_steps={STEPS}",
    f"checkpoints.every={SAVE_EVERY}",
    "checkpoints.keep=1",
    "train.global_batch=8",
    "data.max_length=64",
    "logging.every=1",
    "lora.rank=4",
    "lora.dropout=0.1",
)
CALLS = "open", "write", "fsync", "rename", "unlink", "rmdir", "mkdir"
# In the thread of the commits each call takes SECONDS, and `fault(name, number, arguments)` comes before it: `number`
# counts its name's calls in the second commit.
AROUND = """
import os, threading, time, signal, errno
from loradock.training.saving import Saver
commits, counts = 0, {}
def is_there(): return threading.current_thread().name.startswith("commit")
def fault(name, number, arguments): pass
def around(name):
    real = getattr(os, name)
    def call(*arguments, **more):
        if is_there():
            time.sleep(SECONDS)
            if commits == 2:
                counts[name] = counts.get(name, 0) + 1
                fault(name, counts[name], arguments)
        return real(*arguments, **more)
    setattr(os, name, call)
for name in CALLS: around(name)
real_commit = Saver._commit
def commit(self, *arguments):
    global commits
    commits += 1
    return real_commit(self, *arguments)
Saver._commit = commit
"""
KILL = """
def fault(name, number, arguments):
    if (name, number) == PLACE: os.kill(os.getpid(), signal.SIGKILL)
"""
REFUSE = """
def fault(name, number, arguments):
    if (name, number) == PLACE: raise OSError(errno.ERROR, os.strerror(errno.ERROR))
"""
DIE = """
def fault(name, number, arguments):
    if (name, number) == PLACE: raise RuntimeError("the thread dies")
"""
SLOW = """
from loradock.training.cadence import Flow
real_after = Flow.after
def after(self, step):
    time.sleep(0.4)
    return real_after(self, step)
Flow.after = after
"""
STOP = """
def fault(name, number, arguments):
    if (name, number) == PLACE: os.kill(os.getpid(), signal.SIGTERM)
"""
SMALL = """
from loradock.machine import probe
probe.memory_free = lambda host: 200 << 20
"""
PLACES = {
    "the stage is made": ("mkdir", 1),
    "the weights are written": ("write", 1),
    "the weights are flushed": ("fsync", 1),
    "the state is written": ("write", 3),
    "the manifest is flushed": ("fsync", 4),
    "the stage is flushed": ("fsync", 5),
    "it becomes visible": ("rename", 1),
    "its name is flushed": ("fsync", 6),
    "the old one leaves": ("rename", 2),
    "the old one's leaving is flushed": ("fsync", 7),
    "the old one's files are removed": ("unlink", 2),
    "the old one's folder is removed": ("rmdir", 1),
}
IN_CI = ("the weights are written", "it becomes visible", "its name is flushed", "the old one leaves")

Start = Callable[..., Command]


@pytest.fixture(scope="module")
def start(llama: Path, rows: Path, forking: Forking) -> Start:
    def begin(folder: Path, code: str = "", *, place: Any = None, seconds: float = 0.03, **words: str) -> Command:
        for word, text in {"PLACE": repr(place), "SECONDS": str(seconds), "CALLS": repr(CALLS), **words}.items():
            code = code.replace(word, text)
        sets = [word for setting in RUN for word in ("--set", setting)]
        inputs = ("--model", str(llama), "--data", str(rows), "--output", "out", unchecked("a commit is disturbed"))
        return forking.start(folder, "train", *inputs, *sets, code=code)

    return begin


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, start: Start) -> dict[str, Any]:
    """What a run leaves that nobody disturbs."""
    place = tmp_path_factory.mktemp("whole")
    run = start(place)
    assert run.finish() == 0, run.text()
    return left(place)


def left(place: Path) -> dict[str, Any]:
    """The adapter, and the loss of each step in the order of the record."""
    lines = [json.loads(line) for line in (place / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
    return {"adapter": (place / "out" / "adapter" / "adapter_model.safetensors").read_bytes(), "losses": losses}


def last_step(run: Command) -> int:
    return max(int(step) for step in re.findall(rf"step (\d+)/{STEPS}", run.text()))


def announced(place: Path, run: Command) -> list[int]:
    """The checkpoints that the run told of: on the screen, in its metrics and in its status, which have to agree."""
    on_screen = [int(step) for step in re.findall(r"step (\d+)  checkpoint saved", run.text())]
    lines = [json.loads(line) for line in (place / "out" / "metrics.jsonl").read_text().splitlines()]
    assert on_screen == [line["step"] for line in lines if line["kind"] == "checkpoint"]
    status = json.loads((place / "out" / "status.json").read_text())
    assert status["last_checkpoint"] == (f"checkpoint-{on_screen[-1]}" if on_screen else None)
    return on_screen


def flaws_after(place: Path, start: Start, whole: dict[str, Any]) -> list[str]:
    """What is wrong with what lies there, and with the run once its command was given again."""
    wrong = [f"{each.path.name}: {each.problem}" for each in found(place / "out" / "checkpoints") if each.problem]
    again = start(place)
    if again.finish():
        return [*wrong, f"refused: {again.text()[-500:]}"]
    wrong += [f"another {name}" for name, value in left(place).items() if value != whole[name]]
    return wrong + [f"debris: {path.name}" for path in (place / "out" / "checkpoints").glob(".*")]


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=[] if where in IN_CI else pytest.mark.full) for where in PLACES]
)
def test_a_run_killed_while_its_commit_runs_beside_the_steps_ends_with_the_same_bits(
    where: str, tmp_path: Path, start: Start, whole: dict[str, Any], trial: Trial
) -> None:
    run = start(tmp_path, AROUND + KILL, place=PLACES[where])
    assert run.finish() == -signal.SIGKILL, run.text()
    told, made = announced(tmp_path, run), last_step(run)
    steps = [each.step for each in found(tmp_path / "out" / "checkpoints")]
    assert set(told) <= set(steps), "what was told is there"
    assert SAVE_EVERY < made <= 3 * SAVE_EVERY
    wrong = flaws_after(tmp_path, start, whole)
    trial("P2", not wrong and told == [SAVE_EVERY], killed_where=where, steps=steps, made=made, problems=wrong)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("error", "where", "kind"),
    [
        ("ENOSPC", ("write", 3), DiskFull),
        ("EDQUOT", ("fsync", 2), DiskFull),
        ("EIO", ("fsync", 4), StorageError),
        ("EIO", ("rename", 1), StorageError),
    ],
)
def test_a_disk_that_refuses_a_commit_ends_the_run_with_its_code_at_the_next_step(
    error: str,
    where: tuple[str, int],
    kind: type[LoradockError],
    tmp_path: Path,
    start: Start,
    whole: dict[str, Any],
    trial: Trial,
) -> None:
    run = start(tmp_path, AROUND + REFUSE + SLOW, place=where, seconds=0.01, ERROR=error)
    code = run.finish()
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    told = announced(tmp_path, run)
    names = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert (record["status"], record["exit_code"]) == ("failed", code)
    assert "Traceback" not in run.text()
    assert last_step(run) < 3 * SAVE_EVERY, "it ends before the next save, which would have found it"
    is_right = code == kind.exit_code and told == [SAVE_EVERY] and names == [f"checkpoint-{SAVE_EVERY}"]
    wrong = flaws_after(tmp_path, start, whole)
    trial("P5", is_right and not wrong, error=error, code=code, told=told, names=names, problems=wrong)


def test_a_thread_that_dies_ends_the_run_as_the_bug_that_it_is(
    tmp_path: Path, start: Start, whole: dict[str, Any]
) -> None:
    run = start(tmp_path, AROUND + DIE, place=("write", 2))
    assert run.finish() == LoradockError.exit_code, run.text()
    assert "unexpected RuntimeError: the thread dies" in run.text()
    assert announced(tmp_path, run) == [SAVE_EVERY]
    assert flaws_after(tmp_path, start, whole) == []


def test_a_signal_waits_for_the_commit_that_runs_and_for_the_last_one(
    tmp_path: Path, start: Start, whole: dict[str, Any], trial: Trial
) -> None:
    run = start(tmp_path, AROUND + STOP, place=("write", 1))
    code = run.finish()
    told = announced(tmp_path, run)
    newest = found(tmp_path / "out" / "checkpoints")[0]
    assert told[:2] == [SAVE_EVERY, 2 * SAVE_EVERY]
    assert (newest.step, newest.problem) == (told[-1], None)
    is_right = code == Stopped.exit_code and told[-1] == last_step(run)
    wrong = flaws_after(tmp_path, start, whole)
    trial("P6", is_right and not wrong, code=code, told=told, problems=wrong)


def test_the_next_save_waits_for_the_commit_that_runs(tmp_path: Path, start: Start, whole: dict[str, Any]) -> None:
    run = start(tmp_path, AROUND, seconds=0.1)
    assert run.finish() == 0, run.text()
    assert announced(tmp_path, run) == [4, 8, 12, 16]
    assert left(tmp_path) == whole
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    commits = [line for line in lines if line["kind"] == "checkpoint"]
    assert all(line["commit_seconds"] > 2 for line in commits)
    assert all(0 < line["seconds"] <= line["commit_seconds"] + 0.1 for line in commits)
    place = [(line["kind"], line["step"]) for line in lines]
    assert place.index(("checkpoint", 4)) > place.index(("train", 7)), "steps were made meanwhile"
    assert place.index(("checkpoint", 4)) < place.index(("train", 9)), "the next save waited"


def test_without_room_for_the_copy_it_is_saved_in_the_step_and_said(
    tmp_path: Path, start: Start, whole: dict[str, Any]
) -> None:
    run = start(tmp_path, SMALL)
    assert run.finish() == 0, run.text()
    assert left(tmp_path) == whole
    assert re.search(
        r"saving: in the step \(a copy of the state needs .* of host memory; 200.0 MiB are free\)", run.text()
    )
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert {each["name"]: each["value"] for each in record["engine"]}["saving"] == "in the step"
