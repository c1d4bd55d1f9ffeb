"""What carries out a section of docs/adding.md: its programs, a copy of the package, and the command line on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import loradock

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"


def parts_of(section: str) -> list[str]:
    """The programs of a section of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def copied(folder: Path) -> Path:
    """A copy of the package in the folder."""
    package = folder / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def insert(table: Path, line: str, *, after: str) -> None:
    """One more line in a table, after a text that stands in it once."""
    text = table.read_text("utf-8")
    assert text.count(after) == 1, after
    table.write_text(text.replace(after, after + line), "utf-8")


def typed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the package that lies in the folder."""
    command, environment = [sys.executable, "-m", "loradock", *arguments], {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
