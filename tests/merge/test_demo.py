"""The demo, trained whole by the README's command: its merged model is the model that was trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from loradock.use.merge.compare import held_out
from loradock.use.merge.job import Asked, Job, prepared
from loradock.use.merge.proof import kl, of_adapter

HELDOUT = Path(__file__).parents[2] / "src" / "loradock" / "demo" / "heldout.jsonl"
KL_BOUND = {"f32": 1e-8, "bf16": 5e-5}
"""Nats per answer token, a mean over the held-out rows."""


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


def divergence(merged: Path, job: Job) -> float:
    """KL divergence of the merged model from base and adapter, in nats per token of the held-out answers."""
    reference, other = of_adapter(job), AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    found: list[torch.Tensor] = []
    for ids, is_answer in held_out(job):
        with torch.no_grad():
            both = [model(ids[None]).logits[0, :-1].log_softmax(dim=-1) for model in (reference, other)]
        found.append(kl(both[0], both[1])[is_answer[1:].bool()])
    return float(torch.cat(found).mean())


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_the_merged_demo_answers_each_row_as_its_adapter_does(tmp_path: Path, seed: int) -> None:
    typed("train", "--demo", "--set", f"train.seed={seed}", folder=tmp_path)
    own = answers("runs/demo-001", tmp_path)
    assert len(own) == 105
    for dtype, bound in KL_BOUND.items():
        typed("merge", "runs/demo-001", dtype, "--dtype", dtype, "--verify", "full", folder=tmp_path)
        with prepared(tmp_path / "runs" / "demo-001", Asked()) as job:
            assert divergence(tmp_path / dtype, job) <= bound
        assert answers(dtype, tmp_path) == own
