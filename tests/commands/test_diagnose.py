"""`loradock diagnose` as a command: what it lists, refuses, keeps, and how it ends when it is stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from faults.door import door
from proven import unchecked
from tiny import make_llama, write_rows

from loradock.analysis.diagnose import accuracy, seeds
from loradock.analysis.diagnose.accuracy import Asked, lines, measure
from loradock.analysis.diagnose.arms import Arm
from loradock.cli import cli
from loradock.commands.diagnose import command_of
from loradock.commands.run_options import Ask
from loradock.config.load import load
from loradock.plan.changed import changed_config

if TYPE_CHECKING:
    from faults.forking import Command, Forking

SHORT = ("--steps", "2", "--warmup-steps", "1", "--set", "train.max_steps=500", "--set", "data.max_length=64")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diagnose")
    make_llama(folder / "base")
    write_rows(folder / "rows.jsonl")
    return folder


def start(forking: Forking, place: Path, *options: str, code: str = "") -> Command:
    return forking.start(place, "diagnose", "--model", "base", "--data", "rows.jsonl", *SHORT, *options, code=code)


def test_the_trials_are_listed_and_an_unknown_one_is_refused_with_the_nearest(forking: Forking, place: Path) -> None:
    command = start(forking, place, "--list")
    assert command.finish() == 0, command.text()
    assert (
        "lora-rank-x0.5            LoRA rank 8 instead of 16 (half the trainable weights)"
        in command.text().splitlines()
    )
    command = start(forking, place, "--trials", "lora-rank")
    assert command.finish() == 64
    assert "did you mean lora-rank-x0.5?" in command.text()
    command = start(forking, place, "--trials", "zzz,yyy")
    assert command.finish() == 64
    assert command.text().count("lora-rank-x0.5") == 1
    command = start(forking, place, "--trials", " , ")
    assert command.finish() == 64
    assert "--trials names no trial" in command.text()


def test_the_trials_of_a_note_are_listed_without_a_model_rows_or_a_gpu(forking: Forking, place: Path) -> None:
    command = forking.start(place, "diagnose", "--preset", "seed-003", "--list")
    assert command.finish() == 0, command.text()
    names = [line.split()[0] for line in command.text().splitlines()]
    assert {"packing", "mixed-lengths", "length-512-batch-8"} <= set(names)


def test_a_budget_that_is_over_before_there_is_a_plan_is_refused_as_one(forking: Forking, place: Path) -> None:
    slow = "import time; from loradock.analysis.diagnose import attempt; attempt.look = lambda *_, **__: time.sleep(60)"
    command = start(forking, place, "--budget", "1s", code=slow)
    assert command.finish() == 64, command.text()
    assert "error: the plan was not made in the 1 s that the budget leaves: nothing was measured" in command.text()
    assert "Traceback" not in command.text()


@pytest.mark.parametrize("verb", ["diagnose", "profile"])
def test_a_mistyped_file_is_told_at_once(verb: str, forking: Forking, place: Path) -> None:
    command = forking.start(place, verb, "--model", "base", "--data", "row.jsonl")
    assert command.finish() == 66
    assert command.text() == "error: row.jsonl does not exist\nhint: did you mean rows.jsonl?\n"


@pytest.mark.parametrize(
    ("verb", "meaning"),
    [
        ("train", "--output DIR output: the run directory."),
        ("diagnose", "--output DIR Keep results in this folder"),
        ("profile", "--output DIR New folder for trace and tables"),
    ],
)
def test_the_help_says_what_output_is_to_the_command(verb: str, meaning: str) -> None:
    assert meaning in " ".join(CliRunner().invoke(cli, [verb, "--help"]).stdout.split())


def test_what_a_run_refuses_is_refused_with_its_exit_code(forking: Forking, place: Path) -> None:
    command = start(forking, place, "--set", "engine=fast", "--set", "train.compile=default")
    assert command.finish() == 78, command.text()
    assert "the run cannot start" in command.text()
    command = start(forking, place, "--budget", "soon")
    assert command.finish() == 2
    assert "use 90s, 10m or 1h" in command.text()


@pytest.mark.thin(4)
def test_stopped_by_a_signal_it_keeps_what_it_has_and_the_same_command_goes_on(forking: Forking, place: Path) -> None:
    output = place / "out"
    options = ("--output", str(output), "--trials", "lora-rank-x0.5", "--price-per-hour", "2")
    command = start(forking, place, *options)
    assert command.wait_until(lambda: "round 1, lora-rank" in command.text(), seconds=300), command.text()
    command.send(signal.SIGINT)
    assert command.finish() == 75, command.text()
    assert command.left_behind() == []
    assert list(place.glob(".loradock-diagnose-*")) == []
    assert "stopped by SIGINT; what was measured is kept" in command.text()
    assert "as it is" in command.text()
    before = (output / "results.jsonl").read_text()
    command = start(forking, place, *options)
    assert command.finish() == 0, command.text()
    assert "results of an earlier call are taken over" in command.text()
    assert (output / "results.jsonl").read_text().startswith(before)
    assert [line for line in command.text().splitlines() if line != line.rstrip()] == []
    content = json.loads((output / "diagnosis.json").read_text())
    assert content["is_complete"]
    assert content["rows"][1]["cost_saved"] is not None
    command = start(forking, place, *options, "--set", "train.seed=1")
    assert command.finish() == 64
    assert "another configuration" in command.text()
    assert "train.seed was 0, now 1" in command.text()


def test_a_signal_ends_the_child_too(forking: Forking, place: Path) -> None:
    code = "import time\nfrom loradock.data.steps import Steps\nSteps.__getitem__ = lambda *_: time.sleep(999)"
    command = start(forking, place, code=code)
    logs = ".loradock-diagnose-*/*/log"
    said = "to write"  # of the disk, the last before the first row is asked for
    assert command.wait_until(lambda: any(said in log.read_text() for log in place.glob(logs)), seconds=300)
    command.send(signal.SIGTERM)
    assert command.finish(seconds=60) == 76, command.text()
    assert list(place.glob(".loradock-diagnose-*")) == []
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if "loradock-diagnose" in working_folder(pid)]


def working_folder(process: Path) -> str:
    """What a process has open for its output."""
    try:
        return str((process / "fd" / "1").readlink())
    except OSError:
        return ""


def test_the_command_that_applies_a_patch_repeats_what_was_asked() -> None:
    ask = Ask(
        config=Path("my run.yaml"),
        overrides=("lora.rank=8",),
        shortcuts={"--data": ["a.jsonl", "b.jsonl"], "--max-steps": 9},
    )
    words = (
        "loradock train 'my run.yaml' --data a.jsonl --data b.jsonl --max-steps 9 --set lora.rank=8 --set engine=fast"
    )
    assert command_of(ask, ["engine=fast"]) == words


@pytest.mark.parametrize("name", seeds.SEEDS)
def test_each_row_of_a_note_is_a_valid_change_to_its_preset(name: str) -> None:
    config = load(None, preset=name, shortcuts={"--model": "./m", "--data": ["rows.jsonl"]}).config
    rows: Sequence[seeds.Row] = seeds.SEEDS[name]
    assert len({row.trial.name for row in rows}) == len(rows)
    for row in rows:
        assert changed_config(config, row.trial.settings) != config
    assert seeds.published(name)[rows[0].trial.name] == rows[0].said


@pytest.fixture(scope="module")
def task(place: Path) -> Path:
    """Questions in the layout of a task."""
    rows = [
        {
            "instruction": f"Is {word} white?\n\nAnswer format: true/false",
            "input": "",
            "output": f"the correct answer is {answer}",
            "answer": answer,
        }
        for word, answer in (("salt", "true"), ("coal", "false"), ("snow", "true"), ("a horse", "false"))
    ]
    file = place / "boolq.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    return file


@pytest.mark.full
def test_a_trial_is_asked_for_its_accuracy_beside_the_baseline(forking: Forking, place: Path, task: Path) -> None:
    asked = ("--trials", "lora-rank-x0.5", "--evaluate", f"boolq={task}", "--evaluate-steps", "2")
    command = start(forking, place, *asked, "--output", "accurate", "--budget", "4m")
    assert command.finish() == 0, command.text()
    found = json.loads((place / "accurate" / "diagnosis.json").read_text())["accuracy"]
    assert (found["steps"], list(found["rows"])) == (2, ["baseline", "lora-rank-x0.5"])
    baseline, trial = (found["rows"][name]["boolq"] for name in ("baseline", "lora-rank-x0.5"))
    assert trial["value"] - baseline["value"] == pytest.approx(trial["difference"])
    assert trial["interval"][0] <= trial["difference"] <= trial["interval"][1]
    run = json.loads((place / "accurate" / "accuracy" / "lora-rank-x0.5" / "run.json").read_text())
    assert (run["config"]["lora"]["rank"], run["outcome"]["steps"]) == (8, 2)
    assert "accuracy after 2 steps" in command.text()


def test_a_task_that_cannot_be_asked_is_refused_before_anything_is_measured(forking: Forking, place: Path) -> None:
    command = start(forking, place, "--evaluate", "boolq=gone.json")
    assert command.finish() == 66
    assert "gone.json of task boolq does not exist" in command.text()


@pytest.mark.thin(4)
def test_an_arm_that_cannot_be_trained_says_why_and_the_next_is_asked(
    tmp_path: Path, place: Path, task: Path, forking: Forking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is a process, forked from one that has all imported."""
    arms = [Arm(name="bad", settings=("lora.rank=0",)), Arm(name="half", settings=("lora.rank=8",))]
    inputs = ("--model", str(place / "base"), "--data", str(place / "rows.jsonl"))
    words = ["train", *inputs, unchecked("the command's own test checks")]

    def train(settings: Sequence[str]) -> list[str]:
        return [*words, *(word for each in settings for word in ("--set", each))]

    asked = Asked(tasks=(f"boolq={task}",), steps=1)
    monkeypatch.chdir(tmp_path)  # where a forked command writes its log
    with door(forking) as program:
        forked = SimpleNamespace(command=lambda *line: [*program, *line[len(("-m", "loradock")) :]])
        monkeypatch.setattr(accuracy, "python", forked)
        found = measure(arms, asked, train=train, folder=tmp_path, tell=lambda _: None)
    assert "lora.rank" in found["rows"]["bad"]["failure"]
    assert any("bad: not measured" in line for line in lines(found))
    baseline, half = (found["rows"][name]["boolq"] for name in ("baseline", "half"))
    assert half["value"] - baseline["value"] == pytest.approx(half["difference"])
    assert half["interval"][0] <= half["difference"] <= half["interval"][1]
