"""The command line starts light and ends with the exit codes of errors.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "datasets", "pyarrow", "numpy", "peft", "trl", "pydantic", "yaml")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)


def cpu_seconds(*arguments: str) -> float:
    """User plus system time of a child process."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_help_takes_less_than_0_3_seconds_of_cpu() -> None:
    assert min(cpu_seconds("-m", "loradock", "--help") for _ in range(3)) < 0.3


def test_help_imports_nothing_heavy() -> None:
    done = run("-X", "importtime", "-m", "loradock", "--help")
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "click" in imported
    assert imported.isdisjoint(HEAVY)


def test_help_lists_every_command_with_its_summary() -> None:
    from loradock.cli import COMMANDS

    text = run("-m", "loradock", "--help").stdout
    for name, (_, summary) in COMMANDS.items():
        assert f"{name} " in text
        assert summary.split(".")[0] in text


@pytest.mark.thin(1)
def test_every_command_explains_itself() -> None:
    from loradock.cli import COMMANDS

    for name in COMMANDS:
        done = run("-m", "loradock", name, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Usage:")


def test_an_unknown_command_ends_with_code_2_and_says_so_on_stderr() -> None:
    done = run("-m", "loradock", "trane")
    assert done.returncode == 2
    assert "trane" in done.stderr
    assert done.stdout == ""


def test_an_unknown_option_ends_with_code_2() -> None:
    assert run("-m", "loradock", "--vrsion").returncode == 2


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert run("-m", "loradock", "--version").stdout.split()[-1] == version("loradock")


FULL = 'exec "$@" >/dev/full'


def to(redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", redirected, "bash", sys.executable, "-m", "loradock", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "command", ["config schema", "config presets", "runs .", "--version", "env-check --schema", "train --help"]
)
def test_a_result_for_which_stdout_has_no_space_ends_with_73_and_says_so(command: str, tmp_path: Path) -> None:
    done = to(f"cd '{tmp_path}'; {FULL}", *command.split())
    assert done.returncode == 73, done.stderr
    assert "error: what was printed is not complete: writing to stdout failed: No space left on device" in done.stderr


def test_a_command_that_ends_by_its_own_code_still_says_that_its_result_is_lost(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: {name: ./nowhere}\ndata: {sources: [{path: none.jsonl}]}\n", encoding="utf-8"
    )
    asked = ("--config", str(tmp_path / "run.yaml"), "--level", "quick", "--only", "model", "--json")
    done = to(FULL, "env-check", *asked)
    assert done.returncode == run("-m", "loradock", "env-check", *asked).returncode > 0, done.stderr
    assert "writing to stdout failed: No space left on device" in done.stderr


def test_a_file_that_may_not_grow_cuts_no_result_silently(tmp_path: Path) -> None:
    done = to(f"trap '' XFSZ; ulimit -f 4; exec \"$@\" >'{tmp_path / 'schema.json'}'", "config", "schema")
    assert (done.returncode, "File too large" in done.stderr) == (74, True), done.stderr
    assert (tmp_path / "schema.json").stat().st_size == 4096


def test_a_reader_that_had_enough_is_no_failure() -> None:
    done = to('"$@" | head -1; exit "${PIPESTATUS[0]}"', "config", "schema")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
