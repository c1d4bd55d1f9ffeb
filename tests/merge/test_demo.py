"""The demo, trained whole by the README's command: its merged model is the model that was trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELDOUT = Path(__file__).parents[2] / "src" / "loradock" / "demo" / "heldout.jsonl"
KL_BOUND = {"f32": 1e-8, "bf16": 1e-4}


def typed(*words: str | Path, folder: Path) -> str:
    environment = {**os.environ, "LORADOCK_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "loradock", *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers(model: str, folder: Path) -> list[str]:
    typed("generate", model, "--input", HELDOUT, "-o", f"{model.replace('/', '-')}.jsonl", folder=folder)
    lines = (folder / f"{model.replace('/', '-')}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["answer"] for line in lines]


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_the_merged_demo_answers_each_row_as_its_adapter_does(tmp_path: Path, seed: int) -> None:
    typed("train", "--demo", "--set", f"train.seed={seed}", folder=tmp_path)
    own = answers("runs/demo-001", tmp_path)
    assert len(own) == 105
    for dtype, bound in KL_BOUND.items():
        words = ("--dtype", dtype, "--verify", "full", "--json")
        found = json.loads(typed("merge", "runs/demo-001", dtype, *words, folder=tmp_path))
        assert found["verified"]["kl_mean"] <= bound
        assert answers(dtype, tmp_path) == own
