"""docs/adding.md's optimiser and objective, carried out on a copy of the package and trained by the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from proven import unchecked

import loradock

PAGE = Path(__file__).parents[2] / "docs" / "adding.md"


def parts_of(section: str) -> list[str]:
    """The programs of a section of the page."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def copied(folder: Path) -> Path:
    """A copy of the package."""
    package = folder / "loradock"
    shutil.copytree(Path(loradock.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def added(folder: Path, pure: str, computing: str, line: str, *, name: str) -> dict[str, str]:
    """The environment of a copy of the package that has one more objective."""
    package = copied(folder)
    (package / "catalog" / "objectives" / f"{name}.py").write_text(pure, "utf-8")
    (package / "training" / "objectives" / f"{name}.py").write_text(computing, "utf-8")
    table = package / "catalog" / "objectives" / "__init__.py"
    text, last = table.read_text("utf-8"), "        gritlm.SPEC,\n"
    assert text.count(last) == 1
    text = text.replace(last, last + line)
    table.write_text(text.replace("import embedding, gritlm,", f"import embedding, gritlm, {name},"), "utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}


def typed(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loradock", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


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
    pure, computing, line = parts_of("An objective")
    environment = added(tmp_path, pure, computing, line, name="reweighted")
    records: dict[str, dict[str, Any]] = {}
    for name in ("supervised", "reweighted"):
        options = ("--model", str(llama), "--data", str(rows), "--output", name, "--max-steps", "2")
        settings = ("--set", f"objective={name}", "--set", "logging.every=1", "--set", "data.validation=4")
        done = typed(tmp_path, environment, "train", *options, *settings)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(each) for each in (tmp_path / name / "metrics.jsonl").read_text("utf-8").splitlines()]
        engine = json.loads((tmp_path / name / "run.json").read_text("utf-8"))["plan"]["decisions"]
        records[name] = {
            "losses": [each["loss"] for each in lines if each["kind"] == "train"],
            "perplexity": [each["perplexity"] for each in lines if "perplexity" in each],
            "engine": next(each for each in engine if each["name"] == "engine"),
        }
    plain, reweighted = records["supervised"], records["reweighted"]
    assert (plain["engine"]["value"], reweighted["engine"]["value"]) == ("fast", "peft")
    assert "objective reweighted computes a loss of its own" in reweighted["engine"]["why"]
    assert plain["perplexity"]
    assert not reweighted["perplexity"]
    for weighted, whole in zip(reweighted["losses"], plain["losses"], strict=True):
        assert 0 < weighted < whole / 2

    refused = typed(tmp_path, environment, "config", "show", "--set", "objective=reweigthed")
    assert refused.returncode == 78
    assert "reweighted" in refused.stderr
