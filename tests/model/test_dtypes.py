"""What a run reports of its dtypes is read off what computes: bitsandbytes' layers under TRL, the flat buffers else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jobs import job_of

from loradock.errors import EnvironmentUnfit
from loradock.model import dtypes
from loradock.model.adapters import trainable
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.optimizer import FlatAdamW


def test_the_fast_engine_reports_its_own_dtypes_and_not_those_of_layers_that_it_does_not_call(
    tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, "engine=fast", "model.compute_dtype=float32", model=llama, data=rows)
    job = replace(job, plan=job.plan.with_value("compute_dtype", "bfloat16", why="a test"))
    fast, _ = build(job)
    optimizer = FlatAdamW(fast.adapters, [trainable(job.model)], lr=1e-3, weight_decay=0.0)
    optimizer.step()
    monkeypatch.setattr(type(job.model), "forward", None)  # nothing is computed to find out
    found = dtypes.fast_parts(fast, job.model, optimizer)
    assert found == {
        "base": "nf4 in uint8",
        "other weights": "float32",
        "compute": "bfloat16",
        "adapters": "float32",
        "adapters in products": "bfloat16",
        "optimiser state": "float32",
        "logits": "bfloat16",
    }
    dtypes.check(found, job.plan)
    fast.adapters.working = fast.adapters.values
    with pytest.raises(EnvironmentUnfit, match="adapters in products is float32, not bfloat16"):
        dtypes.check(dtypes.fast_parts(fast, job.model, optimizer), job.plan)


def test_trl_reports_bitsandbytes_layers_and_the_logits_of_a_forward(tmp_path: Path, llama: Path, rows: Path) -> None:
    job = job_of(tmp_path, "engine=peft", "model.compute_dtype=float32", model=llama, data=rows)
    optimizer = torch.optim.AdamW(trainable(job.model))
    for parameter in trainable(job.model):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    found = dtypes.parts(job.model, optimizer)
    assert found == {
        "base": "nf4 in uint8",
        "other weights": "float32",
        "compute": "float32",
        "adapters": "float32",
        "optimiser state": "float32",
        "logits": "float32",
    }
    dtypes.check(found, job.plan)
