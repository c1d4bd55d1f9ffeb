"""The README's real quickstart, as it stands there: it learns, and each verb after it works on what was learned."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "README.md").read_text(encoding="utf-8").split("## A real model in a few minutes")[1]
LINES = [re.sub(r"\s+#.*", "", line) for line in SECTION.split("```bash\n")[1].split("```")[0].splitlines()]


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_quickstart_learns_beyond_chance_and_its_verbs_answer_alike(
    tmp_path: Path, real: Callable[[str], Path]
) -> None:
    model = real("smollm2")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "scripts").mkdir()
    for name, does in (("run", f'exec "{sys.executable}" -m loradock "$@"'), ("real-model", f'echo "{model}"')):
        script = tmp_path / "scripts" / name
        script.write_text(f"#!/bin/sh\n{does}\n")
        script.chmod(0o755)
    said = {line: typed(line, tmp_path) for line in LINES}
    found = json.loads((tmp_path / "runs" / "places" / "evaluations" / "results.json").read_text())
    task, difference = found["tasks"][0], found["against"]["tasks"]["heldout.jsonl"]["difference"]
    assert difference["low"] > 0.15
    assert task["score"]["low"] > task["majority"]
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == task["rows_of_file"]
    assert {each["finish_reason"] for each in answers} == {"stop"}
    assert next(text for line, text in said.items() if " chat " in line).strip() == "Asia"
    merged = "scripts/run generate merged --input examples/places/heldout.jsonl -o merged.jsonl --max-new-tokens 16"
    typed(merged, tmp_path)
    again = [json.loads(line)["answer"] for line in (tmp_path / "merged.jsonl").read_text().splitlines()]
    same = sum(one["answer"] == other for one, other in zip(answers, again, strict=True))
    assert same >= 0.97 * len(answers)  # the file is bfloat16, the adapter float32


def typed(line: str, folder: Path) -> str:
    """What a line of the README prints."""
    environ = os.environ | {"LORADOCK_CACHE": str(folder / "cache"), "NO_COLOR": "1"}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environ, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
