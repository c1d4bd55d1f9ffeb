"""Training by the log-probabilities of documents, on the stand-in GPU: the loss is that of the learned tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakegpu.commands import Gpus
from whole_runs import losses, train

BY_SCORES = """
import torch
from loradock.training.objectives.supervised import Supervised
from loradock.training.passes import MicroStep

def likelihood(self, backend, inputs, *, scale, step, poll):
    total, batches = torch.zeros(1, device=backend.device), backend.micro_batches(inputs, "rows")
    for index, batch in enumerate(batches):
        poll()
        with backend.reference_model():
            base = backend.score(batch, at=None, keeps=False).log_probabilities
        scored = backend.score(batch, at=MicroStep(step=step, index=index, count=len(batches)), keeps=index % 2 == 0)
        assert scored.log_probabilities.is_cuda and (step == 0 or not torch.equal(base, scored.log_probabilities))
        scored.backward(torch.full_like(scored.log_probabilities, -scale))
        total -= scale * scored.log_probabilities.sum()
    return total

Supervised.likelihood = likelihood
"""


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_training_by_scores_has_the_losses_of_one_by_likelihood(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, engine: str
) -> None:
    settings = (f"engine={engine}", "train.micro_batch=2")
    plain = gpu.train(tmp_path / "plain", *settings, model=llama, data=rows)
    scored = gpu.train(tmp_path / "scored", *settings, model=llama, data=rows, code=BY_SCORES)
    assert scored.losses == pytest.approx(plain.losses, rel=2e-3)
    assert scored.counts["launch_faults"] == scored.counts["capture_faults"] == 0


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_preferences_have_the_losses_of_the_cpu_with_the_prompt_computed_once(
    gpu: Gpus, tmp_path: Path, llama: Path, engine: str
) -> None:
    rows = [{"question": f"stones {n} " * 6, "chosen": "lamp " * (1 + n % 3), "rejected": "cat cat"} for n in range(24)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    settings = ("objective=preference", f"engine={engine}", "train.max_steps=3", "train.global_batch=8")
    settings += ("train.learning_rate=1e-3", "train.micro_batch=4", "data.validation=4", "evaluation.every=3")
    there = gpu.train(tmp_path / "gpu", *settings, model=llama, data=pairs)
    here = train(tmp_path / "cpu", *settings, model=llama, data=pairs)
    assert there.losses == pytest.approx(losses(here), rel=2e-3)
    assert there.counts["launch_faults"] == there.counts["capture_faults"] == 0
