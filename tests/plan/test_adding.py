"""docs/adding.md's knob, carried out on a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import loradock

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding.md"
USE = """
from facts.recorded import planned
plan = planned()
print(plan.huge_pages.value, plan.huge_pages.why)
print([each["name"] for each in plan.as_dict()["decisions"]][-3:])
"""


def test_the_knob_of_the_walk_through_is_one_file_and_one_line(tmp_path: Path) -> None:
    section = PAGE.read_text("utf-8").split("## A knob")[1].split("\n## ")[0]
    module, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    package = tmp_path / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "plan" / "knobs" / "huge_pages.py").write_text(module, "utf-8")
    plan = (package / "plan" / "plan.py").read_text("utf-8")
    above = "    tf32: Decision[bool]\n"
    assert above in plan
    (package / "plan" / "plan.py").write_text(plan.replace(above, above + line), "utf-8")

    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    value, order = done.stdout.splitlines()
    assert value == "False the GPU reads the weights"
    assert order == "['compile', 'steps', 'cadence']"
