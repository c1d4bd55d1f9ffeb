"""`python -m bench.ddp` on a few steps: two real processes whose steps are made in three ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_each_way_is_measured_and_the_ratios_are_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.ddp", "--steps", "10", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("*.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert all(found["step_seconds"][way] > 0 for way in ("alone", "apart", "pair"))
    assert all(each["low"] <= each["value"] <= each["high"] for each in found["ratios"].values())
    assert "| both, summed up |" in file.with_suffix(".md").read_text(encoding="utf-8")
