"""Each file in tests/cases/config is wrong; its comments say which problems must be told, and no others.

A comment reads `# expect: [line N] "words" "more words"`, one a problem; the exit code is 78. `# args: none` leaves out
the model and the data that are otherwise given on the command line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from loradock.cli import cli
from loradock.errors import LoradockError, Problem

CASES = sorted((Path(__file__).parents[1] / "cases" / "config").glob("*.yaml"))
INPUTS = ("--model", "./model", "--data", "rows.json")


@dataclass(frozen=True)
class Expected:
    """One problem: its line (None: it has no place) and words of its message and hint."""

    line: int | None
    words: tuple[str, ...]

    def is_told_by(self, problem: Problem) -> bool:
        return problem.line == self.line and all(word in str(problem) for word in self.words)


def expected(case: Path) -> list[Expected]:
    """The problems that the case's comments announce."""
    found: list[Expected] = []
    for line in case.read_bytes().decode("latin-1").splitlines():
        if line.startswith("# expect: "):
            number = re.match(r"line (\d+) ", line.removeprefix("# expect: "))
            words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
            unescaped = tuple(word.replace('\\"', '"') for word in words)
            found.append(Expected(int(number[1]) if number else None, unescaped))
    return found


def arguments(case: Path) -> tuple[str, ...]:
    """The command line of a case. A model or data of its own must not be overruled by ours."""
    text = case.read_bytes()
    if b"# args: none" in text:
        return ()
    without = [flag for flag, key in (("--model", b"\n  name:"), ("--data", b"\n  sources:")) if key in text]
    pairs = (INPUTS[:2], INPUTS[2:])
    return tuple(word for pair in pairs if pair[0] not in without for word in pair)


def error_of(*args: str) -> LoradockError:
    """The error that the command line ends with."""
    result = CliRunner(env={"HF_HUB_OFFLINE": "1"}).invoke(cli, ["config", "validate", *args])
    assert isinstance(result.exception, LoradockError), result.output
    return result.exception


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_bad_file_tells_every_problem_with_its_line_and_no_other(case: Path) -> None:
    announced = expected(case)
    assert announced
    assert all(each.words for each in announced)
    error = error_of(str(case), *arguments(case))
    assert error.exit_code == 78
    missing = [each for each in announced if not any(each.is_told_by(problem) for problem in error.problems)]
    assert not missing, str(error)
    has_place = [problem for problem in error.problems if problem.line is not None]
    assert all(problem.file == str(case) for problem in has_place)
    assert len(error.problems) == len(announced), str(error)


def test_there_are_at_least_forty_bad_files() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", ["unknown_key", "nul_byte", "no_model_and_no_data"])
def test_the_process_ends_with_the_exit_code_and_the_message_on_stderr(name: str) -> None:
    case = next(case for case in CASES if case.stem == name)
    command = [sys.executable, "-m", "loradock", "config", "validate", str(case), *arguments(case)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 78
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for each in expected(case) for word in each.words)


def test_all_problems_of_a_file_and_of_the_command_line_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train:\n  epohcs: 3\n  seed: x\n  seed: 2\nlora:\n  init: pissa\n  rank: 1.5\n")
    options = ("--set", "lora.targets=[a", "--set", "train.lr=1", "--set", "noequals", "--batch-size", "0")
    problems = error_of(str(file), *INPUTS, *options).problems
    assert [problem.line for problem in problems if problem.file == str(file)] == [2, 3, 4, 6, 7]
    assert {problem.file for problem in problems if problem.line is None} == {
        "--set",
        "--set lora.targets",
        "--batch-size",
    }
    assert len(problems) == 9


def test_a_missing_file_a_directory_and_an_empty_file_are_each_said(tmp_path: Path) -> None:
    missing = error_of(str(tmp_path / "none.yaml"))
    assert (missing.exit_code, "no such file" in str(missing)) == (66, True)
    directory = error_of(str(tmp_path))
    assert (directory.exit_code, "cannot be read" in str(directory)) == (66, True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"run_id": "0", "model": {"name": "base"}}')
    for named in (run, run / "run.json"):
        of_run = error_of(str(named))
        assert of_run.exit_code == 66
        assert f"hint: loradock train --resume --output {run} continues it, loradock reproduce {run} rep" in str(of_run)
    empty = tmp_path / "empty.yaml"
    empty.write_text("\n\n")
    assert "the file is empty" in str(error_of(str(empty)))


def test_utf_16_and_a_large_file_are_refused_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes("output: a\n".encode("utf-16"))
    assert "iconv -f UTF-16 -t UTF-8" in str(error_of(str(file)))
    file.write_bytes(b'{"instruction": "x"}\n' * 60_000)
    assert "larger than 1 MB" in str(error_of(str(file)))


def test_an_unknown_preset_names_the_nearest_and_lists_all() -> None:
    error = error_of("--preset", "mistral-a100", *INPUTS)
    assert error.exit_code == 78
    assert "did you mean --preset mistral-a10?" in str(error)
    assert "phi3-commonsense" in str(error)


def test_no_message_speaks_of_pydantic() -> None:
    messages = "".join(str(error_of(str(case), *arguments(case))) for case in CASES)
    for jargon in ("Input should", "pydantic", "https://", "type=", "Field required"):
        assert jargon not in messages
