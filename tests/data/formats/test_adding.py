"""docs/adding.md's format, carried out on a copy of the package by the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from adding import copied, insert, parts_of, typed
from proven import unchecked

GOOD = {"question": "Which gas do plants take in?", "choices": ["oxygen", "carbon dioxide"], "correct": 1}
BAD = [
    {"question": "Which?", "choices": ["a", "b"], "correct": 2},
    {"question": "Which?", "choices": ["a", 1], "correct": 0},
]
TABLE = "catalog/formats.py"


def written(file: Path, *rows: dict[str, object]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return file


@pytest.mark.thin(6)
def test_the_format_of_the_walk_through_is_shown_trained_on_and_refuses_bad_rows(tmp_path: Path, llama: Path) -> None:
    module, line = parts_of("A data format, step by step")
    rows = written(tmp_path / "questions.jsonl", *[GOOD] * 8)
    package = copied(tmp_path)
    data = ("--model", str(llama), "--data", str(rows), "--set", "data.cache=cache")
    unknown = typed(tmp_path, "data", "show", *data)
    assert unknown.returncode == 65
    assert "question, choices, correct" in unknown.stderr

    (package / "data" / "formats" / "multiple_choice.py").write_text(module, "utf-8")
    insert(package / TABLE, line, after="FORMATS: dict[str, str] = {\n")
    shown = typed(tmp_path, "data", "show", *data, "--row", "1")
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert "Which gas do plants take in? 1. oxygen 2. carbon dioxide" in text
    assert re.search("⟦ ?carbon dioxide", text)

    named = ("--set", "data.sources.0.format=multiple-choice", "--output", "run", "--max-steps", "1")
    trained = typed(tmp_path, "train", *data, *named, unchecked("the package is a copy"))
    assert trained.returncode == 0, trained.stderr
    source = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["config"]["data"]["sources"][0]
    assert source["format"] == "multiple-choice"

    written(rows, GOOD, *BAD)
    refused = typed(tmp_path, "data", "show", *data)
    assert refused.returncode == 65
    assert "correct must be a whole number from 0 to 1" in refused.stderr
    assert "choices[1] is a number, not text" in refused.stderr
    misspelt = typed(tmp_path, "config", "show", "--set", "data.sources=[{path: a.jsonl, format: multiple-choise}]")
    assert misspelt.returncode == 78
    assert "multiple-choice" in misspelt.stderr
