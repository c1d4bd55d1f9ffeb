"""The command line starts light and ends with the exit codes of errors.py."""

from __future__ import annotations

import os
import subprocess
import sys

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
