"""lm-eval, from its own lock beside the packages of the tests, with models that loradock opened."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluation.made import NEEDS_DATA, SHARED
from tiny import make_llama
from whole_runs import train

from bench.evaluate.tables import alike, apart
from loradock.cli import cli
from loradock.errors import EnvironmentUnfit, UsageError
from loradock.use.evaluation.harness import _measures

ROOT = Path(__file__).parents[2]
LOCKS = (ROOT / "docker" / "requirements-dev.lock", ROOT / "docker" / "requirements-harness.lock")
TASK = """
task: colours
dataset_path: json
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["yes", "no"]
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def entries(lock: Path) -> dict[str, str]:
    text = lock.read_text(encoding="utf-8")
    return {each.partition("==")[0]: each for each in re.split(r"\n(?=[a-z0-9])", text)}


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where lm-eval can be imported from."""
    folder = tmp_path_factory.mktemp("harness")
    ours, theirs = map(entries, LOCKS)
    wanted = folder / "wanted.txt"
    wanted.write_text("\n".join(theirs[name] for name in theirs.keys() - ours.keys()), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    command += ["--target", str(folder / "site"), "--no-deps", "--require-hashes", "-r", str(wanted)]
    subprocess.run(command, check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [("Is salt white?", 0), ("Is coal white?", 1), ("Is snow white?", 0), ("Is tar white?", 1)]
    lines = [json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in rows]
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "colours.yaml").write_text(TASK.format(rows=folder / "rows.jsonl"), encoding="utf-8")
    return folder


@pytest.mark.full
def test_base_and_adapter_are_measured_by_the_tasks_of_a_folder(
    tmp_path: Path, llama: Path, rows: Path, layer: Path, tasks: Path
) -> None:
    run = train(tmp_path / "run", "train.max_steps=2", model=llama, data=rows).directory
    command = [sys.executable, "-m", "loradock", "evaluate", str(run), "--harness", "colours", "--base", "--json"]
    command += ["--harness-tasks-dir", str(tasks)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{layer}", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((run / "evaluations" / "harness.json").read_text(encoding="utf-8"))
    assert list(found["results"]) == [str(run), f"{run} without adapter"]
    for measures in found["results"].values():
        assert measures["colours"]["acc"]["value"] in (0, 0.25, 0.5, 0.75, 1)
    unknown = [*command[:5], "--harness", "colors", *command[7:]]
    refused = subprocess.run(unknown, env=environment, capture_output=True, text=True)
    assert refused.returncode == 64
    assert "lm-eval has no task colors" in refused.stderr


@pytest.mark.full
@NEEDS_DATA
def test_on_the_same_ids_lm_eval_has_our_log_probabilities_and_choices_of_3_x_500_rows(
    tmp_path: Path, layer: Path
) -> None:
    """A vocabulary of 878: over 49,152 tokens lm-eval's own float32 sums are off by some 6e-5 (docs/evaluate.md)."""
    model = make_llama(tmp_path / "base", max_position_embeddings=2048)
    command = [sys.executable, "-m", "bench.evaluate", "--model", str(model), "--tasks", str(SHARED)]
    command += ["--lm-eval", str(layer), "--batch-sizes", "16", "--beam-batch-sizes", "--rounds", "1", "--rows", "750"]
    command += ["--results", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    _, *lines = [json.loads(line) for line in (tmp_path / "results" / "rounds.jsonl").read_text().splitlines()]
    assert sum(len(line["answers"]) for line in lines if line["arm"] == "lm-eval-16") == 3 * 500
    assert apart(lines) <= 1e-4
    assert alike(lines) == {"lm-eval-16": 1.0}


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is not None, reason="lm-eval is installed")
def test_without_lm_eval_the_error_says_how_to_install_it(llama: Path) -> None:
    done = CliRunner().invoke(cli, ["evaluate", str(llama), "--harness", "arc_easy", "--limit", "3"])
    assert isinstance(done.exception, EnvironmentUnfit)
    assert "requirements-harness.lock" in str(done.exception.hint)
    assert LOCKS[1].is_file()


@pytest.mark.parametrize("other", [("--task", "boolq"), ("--method", "choice"), ("--split", "dev")])
def test_options_of_another_kind_are_refused(llama: Path, other: tuple[str, str]) -> None:
    done = CliRunner().invoke(cli, ["evaluate", str(llama), "--harness", "arc_easy", *other])
    assert isinstance(done.exception, UsageError)
    assert {other[0], "--harness"} <= set(re.findall(r"--\w+", str(done.exception)))


def test_measures_are_told_from_what_else_stands_in_lm_evals_results() -> None:
    entry = {
        "alias": "arc_easy",
        "sample_len": 4,
        "acc,none": 0.25,
        "acc_stderr,none": 0.1,
        "exact_match,strict": 0.5,
        "exact_match_stderr,strict": "N/A",
    }
    assert _measures(entry) == {
        "acc": {"value": 0.25, "stderr": 0.1},
        "exact_match,strict": {"value": 0.5, "stderr": None},
    }
