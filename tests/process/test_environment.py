"""A number that is none in a variable of a library is named, whatever the command."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from loradock.cli import cli
from loradock.errors import EnvironmentUnfit
from loradock.process.environment import NUMBERS

pytestmark = pytest.mark.thin(1)

SOURCES = {
    "huggingface_hub": ("constants.py",),
    "datasets": ("config.py",),
    "transformers": ("utils/*.py", "*.py"),
    "peft": ("**/*.py",),
    "accelerate": ("utils/*.py", "*.py"),
    "torch": ("*.py", "_inductor/*.py", "_dynamo/*.py", "fx/**/*.py", "_strobelight/*.py", "sparse/*.py"),
}
OTHERS = {"TORCHINDUCTOR_COMPILE_THREADS"}
"""Read in a function that is called on import."""
SMALL = sorted(name for name, (package, _) in NUMBERS.items() if package in ("tqdm", "huggingface_hub"))


@pytest.mark.parametrize("name", NUMBERS)
def test_each_variable_that_must_be_a_number_is_named_with_its_value_and_a_remedy(name: str) -> None:
    for command in (["train", "--demo"], ["env-check"], ["runs"], ["chat", "."]):
        done = CliRunner(env={name: "ten"}).invoke(cli, command)
        assert isinstance(done.exception, EnvironmentUnfit)
        (problem,) = done.exception.problems
        assert f"{name} must be a" in problem.what
        assert "not 'ten'" in problem.what
        assert problem.hint == f"unset {name}"


def test_all_of_them_are_told_at_once_and_numbers_are_taken() -> None:
    done = CliRunner(env={"HF_HUB_ETAG_TIMEOUT": "", "TQDM_DELAY": "soon", "TQDM_NCOLS": "80"}).invoke(cli, ["runs"])
    assert isinstance(done.exception, EnvironmentUnfit)
    assert done.exception.exit_code == 71
    assert [problem.what.split()[0] for problem in done.exception.problems] == ["HF_HUB_ETAG_TIMEOUT", "TQDM_DELAY"]
    assert CliRunner(env={"TQDM_DELAY": "0.5", "HF_HUB_ETAG_TIMEOUT": "20"}).invoke(cli, ["runs", "."]).exit_code == 0


@pytest.mark.parametrize("name", SMALL)
def test_the_library_really_cannot_be_imported_with_it(name: str) -> None:
    module = "tqdm" if name.startswith("TQDM") else "huggingface_hub.constants"
    command = [sys.executable, "-c", f"import {module}"]
    done = subprocess.run(command, env={**os.environ, name: "ten"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ValueError" in done.stderr


def on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from on_import([each for each in ast.iter_child_nodes(statement) if isinstance(each, ast.stmt)])
        else:
            yield statement


def numbers(source: str) -> Iterator[str]:
    """The variables that an import of the module makes numbers of."""
    for statement in on_import(ast.parse(source).body):
        for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
            if ast.unparse(call.func) in ("int", "float", "_as_int"):
                reads = (each for each in ast.walk(call) if isinstance(each, ast.Call))
                yield from (
                    str(ast.literal_eval(each.args[0]))
                    for each in reads
                    if ast.unparse(each.func) in ("os.environ.get", "os.getenv")
                )


def test_the_table_has_what_the_locked_packages_read_on_import() -> None:
    found: set[str] = set()
    for package, patterns in SOURCES.items():
        spec = find_spec(package)
        assert spec
        assert spec.origin
        for file in (file for pattern in patterns for file in Path(spec.origin).parent.glob(pattern)):
            source = file.read_text(encoding="utf-8", errors="replace")
            if "environ" in source or "getenv" in source:
                found |= set(numbers(source))
    assert found >= {"HF_HUB_ETAG_TIMEOUT", "TORCHDYNAMO_REPRO_LEVEL", "HF_DATASETS_IN_MEMORY_MAX_SIZE"}
    assert found | OTHERS == {name for name in NUMBERS if not name.startswith("TQDM")}
