"""Training by the log-probabilities of documents, on the stand-in GPU: the loss is that of the learned tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakegpu.commands import Gpus

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


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_training_by_scores_has_the_losses_of_one_by_likelihood(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path, engine: str
) -> None:
    settings = (f"engine={engine}", "train.micro_batch=2")
    plain = gpu.train(tmp_path / "plain", *settings, model=llama, data=rows)
    scored = gpu.train(tmp_path / "scored", *settings, model=llama, data=rows, code=BY_SCORES)
    assert scored.losses == pytest.approx(plain.losses, rel=2e-3)
    assert scored.counts["launch_faults"] == scored.counts["capture_faults"] == 0
