"""What is made of a finished run, by one process: a merge, answered tasks; the same command makes what was missed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from proven import unchecked
from tiny import copy_tree
from transformers import AutoModelForCausalLM

from loradock.cli import cli
from loradock.errors import Locked, LoradockError
from loradock.training.observers import model_card
from loradock.use.inference.opener import open_model

pytestmark = pytest.mark.thin(2)

QUESTION = {
    "instruction": "Is salt white?\n\nAnswer format: true/false",
    "input": "",
    "output": "the correct answer is true",
}
IDS = torch.tensor([[5, 9, 11, 30]])
# Another process that takes the lock of a run, and keeps it until its input ends.
HOLDS = """
import sys
from pathlib import Path
from loradock.errors import Locked
from loradock.training.run_dir.output_lock import OutputLock
try:
    lock = OutputLock.take(Path(sys.argv[1]))
except Locked:
    print("refused", flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


def command(folder: Path, model: Path, rows: Path, *settings: str) -> list[str]:
    words = ["train", "--model", str(model), "--data", str(rows), "--output", str(folder / "run")]
    words.append(unchecked("what comes after a training is tried"))
    sets = ("train.max_steps=2", "lora.rank=4", f"data.cache={folder / 'cache'}", *settings)
    return [*words, *(word for each in sets for word in ("--set", each))]


def train(folder: Path, model: Path, rows: Path, *settings: str) -> str:
    found = CliRunner().invoke(cli, command(folder, model, rows, *settings))
    assert found.exit_code == 0, found.output
    return found.output


def refused(folder: Path, model: Path, rows: Path, *settings: str) -> LoradockError:
    """The error with which the command ends."""
    words = command(folder, model, rows, *settings)
    with pytest.raises(LoradockError) as caught:
        CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)
    return caught.value


def holder(run: Path) -> subprocess.Popen[str]:
    """A process that has tried to take the lock of the run."""
    words = [sys.executable, "-c", HOLDS, str(run)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def contents(run: Path) -> dict[str, bytes]:
    """Every file of the run but its lock."""
    files = (file for file in run.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


def questions(folder: Path) -> str:
    """The setting that asks four questions."""
    file = folder / "boolq.json"
    file.write_text(json.dumps([QUESTION | {"answer": answer} for answer in ("true", "false", "true", "true")]))
    return f"evaluation.tasks=[boolq={file}]"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Path:
    """A folder with a finished run, of which nothing was asked."""
    folder = tmp_path_factory.mktemp("finished")
    train(folder, llama, rows)
    return folder


@pytest.mark.parametrize("onto", ["auto", "original"])
def test_a_finished_run_is_merged_and_what_was_missed_is_made_by_the_same_command(
    tmp_path: Path, llama: Path, rows: Path, onto: str
) -> None:
    said = train(tmp_path, llama, rows, f"after.merge={onto}")
    merged = tmp_path / "run" / "merged"
    assert f"merged model: {merged}" in said
    weights = (merged / "model.safetensors").read_bytes()
    shutil.rmtree(merged)
    assert "is finished" in train(tmp_path, llama, rows, f"after.merge={onto}")
    assert (merged / "model.safetensors").read_bytes() == weights
    if onto == "auto":
        run, plain = open_model(tmp_path / "run"), AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
        with run.computing():
            torch.testing.assert_close(plain(IDS).logits, run.model(IDS).logits, atol=2e-3, rtol=0)


def test_a_finished_run_answers_its_tasks_and_says_so_in_record_and_model_card(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    said = train(tmp_path, llama, rows, questions(tmp_path))
    assert "boolq: " in said
    run = tmp_path / "run"
    (found,) = json.loads((run / "run.json").read_text())["tasks"]
    assert (found["rows"], found["majority"]) == (4, 0.75)
    assert found["adapter"] - found["base"] == pytest.approx(found["difference"])
    assert "| boolq | 4 |" in (run / "adapter" / "README.md").read_text()
    assert "evaluating" not in train(tmp_path, llama, rows, questions(tmp_path))


@pytest.mark.parametrize(
    ("asked", "code", "what"),
    [("boolq=gone.json", 66, "gone.json of task boolq does not exist"), ("boolk=x.json", 78, "evaluation.tasks: ")],
)
def test_a_task_that_cannot_be_asked_is_refused_before_anything_is_trained(
    tmp_path: Path, llama: Path, rows: Path, asked: str, code: int, what: str
) -> None:
    words = ["train", "--model", str(llama), "--data", str(rows), "--output", str(tmp_path / "run")]
    with pytest.raises(LoradockError) as error:
        CliRunner().invoke(
            cli, [*words, "--set", f"evaluation.tasks=[{asked}]"], catch_exceptions=False, standalone_mode=False
        )
    assert error.value.exit_code == code
    assert what in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_run_without_the_key_is_not_merged(finished: Path) -> None:
    assert not (finished / "run" / "merged").exists()


def test_what_comes_after_a_run_is_refused_while_another_process_holds_its_lock_and_made_by_the_same_command_then(
    finished: Path, tmp_path: Path, llama: Path, rows: Path
) -> None:
    folder = copy_tree(finished, tmp_path / "copy")
    settings = ("after.merge=original", questions(folder))
    before, other = contents(folder / "run"), holder(folder / "run")
    try:
        assert answer(other) == "held"
        error = refused(folder, llama, rows, *settings)
        assert error.exit_code == Locked.exit_code
        assert f"pid {other.pid}" in error.what
        assert contents(folder / "run") == before
    finally:
        other.communicate("")
    said = train(folder, llama, rows, *settings)
    assert "boolq: " in said
    assert "merged model: " in said


def test_nothing_is_locked_where_nothing_is_left_to_make(finished: Path, llama: Path, rows: Path) -> None:
    other = holder(finished / "run")
    try:
        assert answer(other) == "held"
        assert "is finished" in train(finished, llama, rows)
    finally:
        other.communicate("")


def test_the_record_is_written_under_the_lock_and_not_by_one_that_has_lost_it(
    finished: Path, tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_tree(finished, tmp_path / "copy")
    record, lock = folder / "run" / "run.json", folder / "run" / ".lock"
    before, seen, write = record.read_bytes(), list[str](), model_card.write

    def lost(*rest: Any, **more: Any) -> None:
        other = holder(folder / "run")
        seen.append(answer(other))
        other.communicate("")
        lock.unlink()
        lock.write_text(json.dumps({"token": 99, "owner": "another", "pid": 1, "host": "elsewhere", "started": "now"}))
        write(*rest, **more)

    monkeypatch.setattr(model_card, "write", lost)
    error = refused(folder, llama, rows, questions(folder))
    assert seen == ["refused"]
    assert (error.exit_code, record.read_bytes()) == (Locked.exit_code, before)
    monkeypatch.undo()
    assert "boolq: " in train(folder, llama, rows, questions(folder))
    assert json.loads(record.read_text("utf-8"))["tasks"][0]["rows"] == 4
