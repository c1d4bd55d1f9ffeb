"""`--ledger FILE`: a long campaign continues where it stopped; a test that passed with this code is not run again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def code_state() -> str:
    """The trees of src/ and tests/ as committed; what is not committed is an error, as it has no name."""
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.run([*git, "status", "--short", "src", "tests"], capture_output=True, text=True, check=True)
    if changed.stdout:
        raise pytest.UsageError(f"--ledger: commit these first, results belong to a commit:\n{changed.stdout}")
    trees = subprocess.run([*git, "rev-parse", "HEAD:src", "HEAD:tests"], capture_output=True, text=True, check=True)
    return " ".join(trees.stdout.split())


class Ledger:
    """A plugin: its file's first line is the code's state, each other one a test that passed with it."""

    def __init__(self, file: Path, state: str) -> None:
        self.file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if lines and lines[0] != state:
            raise pytest.UsageError(f"{file} holds results of other code; take another file, or remove it")
        if not lines:
            file.write_text(f"{state}\n", encoding="utf-8")
        self.passed = set(lines[1:])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid in self.passed]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(f"{report.nodeid}\n")
