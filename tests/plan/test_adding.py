"""docs/adding.md's knob, carried out on a copy of the package by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adding import copied, insert, parts_of, typed
from proven import unchecked


@pytest.mark.thin(6)
def test_the_knob_of_the_walk_through_is_in_the_plan_with_its_reason_and_in_the_record(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    module, line = parts_of("A knob")
    package = copied(tmp_path)
    (package / "plan" / "knobs" / "huge_pages.py").write_text(module, "utf-8")
    insert(package / "plan" / "plan.py", line, after="    tf32: Decision[bool]\n")
    run = ("--model", str(llama), "--data", str(rows), "--set", "data.cache=cache")

    planned = typed(tmp_path, "plan", *run)
    assert planned.returncode == 0, planned.stderr
    (shown,) = (row for row in planned.stdout.splitlines() if "huge_pages" in row)
    assert "off" in shown
    assert "weights are read by the CPU for each pass" in " ".join(planned.stdout.split())

    trained = typed(tmp_path, "train", *run, "--output", "run", "--max-steps", "1", unchecked("the package is a copy"))
    assert trained.returncode == 0, trained.stderr
    decisions = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["plan"]["decisions"]
    names = [decision["name"] for decision in decisions]
    at = names.index("huge_pages")
    assert names[at - 1] == "tf32"
    assert decisions[at]["value"] is False
    assert decisions[at]["why"].endswith("weights are read by the CPU for each pass")
