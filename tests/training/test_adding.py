"""docs/adding.md's optimiser and objective, carried out on a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from proven import unchecked

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


def parts_of(section: str) -> list[str]:
    """The programs of a section of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def copied(folder: Path) -> Path:
    """A copy of the package."""
    package = folder / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def test_the_optimiser_of_the_walk_through_is_asked_for_on_the_command_line_and_trains(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    entry, name = parts_of("An optimiser")
    table = copied(tmp_path) / "catalog" / "optimizers.py"
    text, closing = table.read_text("utf-8"), "\n    )\n}\nDEFAULT"
    assert text.count(closing) == 1
    text = re.sub(r"(?m)^Name = .*\n", name, text.replace(closing, f"\n{entry.rstrip()}{closing}"))
    table.write_text(text, "utf-8")

    asked = ("train.optimizer=adamw_amsgrad", "train.max_steps=2", "lora.rank=4", "data.cache=cache")
    words = [sys.executable, "-m", "loradock", "train", "--model", str(llama), "--data", str(rows), "--output", "run"]
    words += [unchecked("the package is a copy"), *(word for each in asked for word in ("--set", each))]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    decisions = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["plan"]["decisions"]
    (why,) = (decision["why"] for decision in decisions if decision["name"] == "engine")
    assert "its optimiser is adamw_fused, not adamw_amsgrad" in why, "the fast engine has it not"
    state = torch.load(tmp_path / "run" / "checkpoints" / "checkpoint-2" / "training_state.pt", weights_only=True)
    assert all("max_exp_avg_sq" in each for each in state["optimizer"]["state"].values())


def test_the_objective_of_the_walk_through_trains_two_steps(tmp_path: Path, llama: Path, rows: Path) -> None:
    module, line = parts_of("An objective")
    package = copied(tmp_path)
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
