"""What carries out a section of docs/adding.md: its programs, a copy of the package, and the command line on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.forking import Forking

import loradock

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"


def parts_of(section: str) -> list[str]:
    """The programs of a section of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def copied(folder: Path) -> Path:
    """A copy of the package in the folder, with what is compiled of it."""
    return Path(shutil.copytree(Path(loradock.__file__).parent, folder / "loradock"))


def insert(table: Path, line: str, *, after: str) -> None:
    """One more line in a table, after a text that stands in it once."""
    text = table.read_text("utf-8")
    assert text.count(after) == 1, after
    table.write_text(text.replace(after, after + line), "utf-8")


Typing = Callable[..., subprocess.CompletedProcess[str]]
"""`typed`, or what is typed to a process that has the package imported: of the folder and the words of a command."""


@contextmanager
def forked(folder: Path) -> Iterator[Typing]:
    """Commands of the package that lies in the folder, once it is complete, from a process that has it imported."""
    parent = Forking(str(folder))
    try:
        yield parent.run
    finally:
        parent.end()


def typed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the package that lies in the folder."""
    command, environment = [sys.executable, "-m", "loradock", *arguments], {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
