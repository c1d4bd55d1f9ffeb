"""`loradock profile` as it is typed: tables or JSON on stdout, notes on stderr, its files in the folder asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from loradock.cli import cli
from loradock.errors import LoradockError, UsageError

if TYPE_CHECKING:
    from faults.forking import Forking

pytestmark = pytest.mark.thin(2)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["profile", *arguments], catch_exceptions=True)


def options(llama: Path, rows: Path, folder: Path) -> list[str]:
    sets = (f"data.cache={folder / 'cache'}", "data.max_length=64", "train.global_batch=8")
    return ["--model", str(llama), "--data", str(rows), "--steps", "8", "--warmup-steps", "1",
            *(text for each in sets for text in ("--set", each))]  # fmt: skip


def test_json_is_one_document_and_lies_in_the_folder_too(llama: Path, rows: Path, tmp_path: Path) -> None:
    done = run(*options(llama, rows, tmp_path), "--output", str(tmp_path / "out"), "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == json.loads((tmp_path / "out" / "profile.json").read_text())
    assert told["verdict"]["sentence"]
    assert "profile: " in done.stderr


@pytest.mark.thin(4)
def test_tables_verdict_and_paths_are_printed(
    llama: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*options(llama, rows, tmp_path))
    assert done.exit_code == 0, done.stderr
    (folder,) = (tmp_path / "profiles").iterdir()
    words = ("per step: ", "whole run: ", "host time per recorded step", "longest operators", "forward", "base model",
             f"trace: profiles/{folder.name}/trace.json.gz")  # fmt: skip
    for each in words:
        assert each in done.stdout
    assert json.loads((folder / "profile.json").read_text())["verdict"]["sentence"] in done.stdout
    assert not [each for each in folder.iterdir() if each.is_dir()], "the run itself is gone"
    assert [line for line in done.stdout.splitlines() if line != line.rstrip()] == []


def test_the_profiler_tells_no_error_of_a_machine_without_a_gpu(
    llama: Path, rows: Path, tmp_path: Path, forking: Forking
) -> None:
    command = forking.start(tmp_path, "profile", *options(llama, rows, tmp_path))
    assert command.finish() == 0, command.text()
    assert "ERROR" not in command.text()


def test_a_folder_with_other_things_is_refused(llama: Path, rows: Path, tmp_path: Path) -> None:
    done = run(*options(llama, rows, tmp_path), "--output", str(rows.parent))
    assert isinstance(done.exception, UsageError)
    assert rows.exists()


def test_an_error_of_the_run_comes_out_and_leaves_no_run_behind(llama: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"instruction": 1}\n')
    done = run(*options(llama, bad, tmp_path), "--output", str(tmp_path / "out"))
    assert isinstance(done.exception, LoradockError)
    assert done.exception.exit_code == 65
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("steps", ["0", "7"])
def test_too_few_steps_to_tell_anything_are_refused(steps: str) -> None:
    assert run("--steps", steps).exit_code != 0
