"""docs/adding.md, carried out on a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import loradock

PAGE = Path(__file__).parents[3] / "docs" / "adding.md"
USE = """
from loradock.config.sections.data import SourceConfig
from loradock.data.sources import samples
for line, found in samples(SourceConfig(path="questions.jsonl")):
    print(line, found)
"""
QUESTIONS = """\
{"question": "Which gas do plants take in?", "choices": ["oxygen", "carbon dioxide"], "correct": 1}
{"question": "Which?", "choices": ["a", "b"], "correct": 2}
{"question": "Which?", "choices": ["a", 1], "correct": 0}
"""


def test_the_format_of_the_walk_through_works_as_printed(tmp_path: Path) -> None:
    module, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[:2]
    package = tmp_path / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "demo"))
    (package / "data" / "formats" / "multiple_choice.py").write_text(module, "utf-8")
    table = (package / "data" / "formats" / "__init__.py").read_text("utf-8")
    imports, entries = r"(from loradock\.data\.formats import \(?\s*)", r"(FORMATS: .*= \(\n)"
    for opening, line in ((imports, "multiple_choice, "), (entries, entry)):
        table, count = re.subn(opening, rf"\1{line}", table)
        assert count == 1, opening
    (package / "data" / "formats" / "__init__.py").write_text(table, "utf-8")
    (tmp_path / "questions.jsonl").write_text(QUESTIONS, "utf-8")

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    good, out_of_range, wrong_type = done.stdout.splitlines()
    assert "content='Which gas do plants take in?\\n\\n1. oxygen\\n2. carbon dioxide'" in good
    assert "role='assistant', content='carbon dioxide'" in good
    assert "correct must be a whole number from 0 to 1" in out_of_range
    assert "choices[1] is a number, not text" in wrong_type
