"""docs/adding.md's objective, carried out on a copy of the package."""

from __future__ import annotations

import json
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
import json, sys
from dataclasses import replace
from pathlib import Path
from jobs import job_of, trained
from loradock.training.events import StepResult
from loradock.training.objectives import objective_of
settings = ("engine=peft", "train.max_steps=2", "logging.every=1")
for name in ("supervised", "reweighted"):
    job = job_of(Path(name), *settings, model=Path(sys.argv[1]), data=Path(sys.argv[2]))
    objective = objective_of(job.config.model_copy(update={"objective": name}))
    outcome, events = trained(replace(job, objective=objective))
    losses = [each.loss for each in events if isinstance(each, StepResult)]
    print(json.dumps({"steps": outcome.steps, "losses": losses, "metrics": list(objective.metrics(1.0))}))
"""


def test_the_objective_of_the_walk_through_trains_two_steps(tmp_path: Path, llama: Path, rows: Path) -> None:
    section = PAGE.read_text("utf-8").split("## An objective")[1].split("\n## ")[0]
    module, line = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    package = tmp_path / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "training" / "objectives" / "reweighted.py").write_text(module, "utf-8")
    table = package / "training" / "objectives" / "__init__.py"
    opening = "OBJECTIVES = {"
    text = table.read_text("utf-8")
    assert text.count(opening) == 1
    table.write_text(text.replace(opening, f"{opening}\n{line}"), "utf-8")

    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, "-c", USE, str(llama), str(rows)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plain, reweighted = (json.loads(each) for each in done.stdout.splitlines()[-2:])
    assert (plain["steps"], plain["metrics"]) == (2, ["perplexity"])
    assert (reweighted["steps"], reweighted["metrics"]) == (2, [])
    for weighted, whole in zip(reweighted["losses"], plain["losses"], strict=True):
        assert 0 < weighted < whole / 2
