"""P9, as a user meets it: the same command with something changed is refused with 83 and the name of what changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.conftest import Trial
from faults.forking import Forking
from proven import unchecked
from tiny import make_llama, write_rows

from loradock.training.run_dir.identity import OF_SHAPE

SETTINGS = ("train.max_steps=4", "train.global_batch=4", "lora.rank=4", "checkpoints.every=2", "data.validation=8")


def trained(forking: Forking, place: Path, *options: str) -> tuple[int, str]:
    """`loradock train` on the model and the rows below `place`, into `place/run`: its exit code, and what it said."""
    arguments = ["train", unchecked("whose run lies there"), "--output", str(place / "run")]
    arguments += ["--model", str(place / "base"), "--data", str(place / "rows.jsonl")]
    for setting in (*SETTINGS, f"data.cache={place / 'cache'}"):
        arguments += ["--set", setting]
    run = forking.start(place, *arguments, *options)
    return run.finish(), run.text()


@pytest.fixture(scope="module")
def cut_off(tmp_path_factory: pytest.TempPathFactory, forking: Forking) -> Path:
    """A run that was killed after its second step: it has one checkpoint, and no ending."""
    place = tmp_path_factory.mktemp("cut_off")
    make_llama(place / "base")
    write_rows(place / "rows.jsonl")
    code, said = trained(forking, place)
    assert code == 0, said
    shutil.rmtree(place / "run" / "checkpoints" / "checkpoint-4")
    shutil.rmtree(place / "run" / "adapter")
    record = json.loads((place / "run" / "run.json").read_text())
    (place / "run" / "run.json").write_text(json.dumps({**record, "status": "running"}))
    return place


@pytest.fixture
def place(cut_off: Path, tmp_path: Path) -> Path:
    """A copy of it that may be spoilt, at another place than it began at."""
    return Path(shutil.copytree(cut_off, tmp_path / "place"))


def other_rows(place: Path) -> None:
    write_rows(place / "rows.jsonl", seed=7)


def other_base(place: Path) -> None:
    shutil.rmtree(place / "base")
    make_llama(place / "base", seed=7)


def nothing(_: Path) -> None:
    """Leave it as it is: an option makes the change."""


@pytest.mark.parametrize(
    ("change", "options", "field"),
    [
        (nothing, ("--lr", "1e-3"), "train.learning_rate"),
        pytest.param(nothing, ("--set", "lora.rank=8"), "lora.rank", marks=pytest.mark.full),
        pytest.param(nothing, ("--set", "train.seed=1"), "train.seed", marks=pytest.mark.full),
        pytest.param(nothing, ("--set", "train.global_batch=8"), "train.global_batch", marks=pytest.mark.full),
        (other_rows, (), "data.train.content"),
        pytest.param(other_base, (), "base.weights", marks=pytest.mark.full),
    ],
)
def test_a_changed_run_is_refused_by_name_and_left_as_it_is(
    change: Callable[[Path], None], options: tuple[str, ...], field: str, place: Path, forking: Forking, trial: Trial
) -> None:
    change(place)
    before = {path: path.read_bytes() for path in (place / "run" / "checkpoints").rglob("*") if path.is_file()}
    code, said = trained(forking, place, *options)
    way_out = "--fresh or another --output" if field in OF_SHAPE else f"--allow-change {field.partition('.')[0]}"
    shown = f"  {field} was " in said and way_out in said
    after = {path: path.read_bytes() for path in (place / "run" / "checkpoints").rglob("*") if path.is_file()}
    trial("P9", code == 83 and shown and before == after, field=field, code=code)


def test_a_change_that_is_named_is_accepted_recorded_and_asked_for_once_only(
    place: Path, forking: Forking, trial: Trial
) -> None:
    code, said = trained(forking, place, "--lr", "1e-3", "--allow-change", "train.learning_rate")
    record = json.loads((place / "run" / "run.json").read_text())
    trial("P9", code == 0, field="train.learning_rate", code=code, error=said[-500:])
    assert "train.learning_rate" in json.dumps(record)
    assert record["config"]["train"]["learning_rate"] == 1e-3
    code, said = trained(forking, place, "--lr", "1e-3")
    assert code == 0, said


def test_a_run_that_moved_with_all_that_it_reads_is_the_same_and_continues(place: Path, forking: Forking) -> None:
    code, said = trained(forking, place)
    assert code == 0, said
    assert "checkpoint-2" in json.dumps(json.loads((place / "run" / "run.json").read_text()))
