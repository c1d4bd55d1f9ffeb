"""The start-up check lets a sound model pass and refuses one that computes something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make_model
from jobs import job_of
from tiny import Silent, train

from loradock.engine.base import Decided, Job
from loradock.engine.fast import linear, self_check
from loradock.engine.fast.attention.base import Documents
from loradock.engine.fast.batch import FlatBatch
from loradock.engine.fast.engine import build
from loradock.errors import ModelError


@pytest.fixture
def job(tmp_path: Path, llama: Path, rows: Path) -> Job:
    return job_of(tmp_path, "engine=fast", "lora.dropout=0.1", model=llama, data=rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sound_model_passes_in_every_dtype_and_is_left_as_it_was(dtype: str, job: Job) -> None:
    job = replace(job, plan=job.plan.with_value("compute_dtype", dtype, why="a test"))  # a CPU would not choose float16
    model, _ = build(job)
    state = torch.get_rng_state()
    found = self_check.check(model, job)
    assert found.gradient < self_check.GRADIENT_TOLERANCE[model.dtype]
    assert not model.adapters.gradient.any()
    assert all(each.grad is None for each in job.model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_documents_that_see_one_another_are_refused(job: Job) -> None:
    model, _ = build(job)
    backend = model.layers[0].attention

    class Leaking:
        def forward(self, q: Any, k: Any, v: Any, documents: Any, rule: Any) -> Any:
            total = q.shape[0]
            bounds = torch.tensor([0, total], dtype=torch.int32)
            return backend.forward(q, k, v, Documents(bounds=(0, total), cu_seqlens=bounds, longest=total), rule)

        def backward(self, *arguments: Any) -> Any:
            return backend.backward(*arguments)

    for layer in model.layers:
        layer.attention = Leaking()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ModelError, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def test_a_gradient_that_is_not_pefts_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build(job)
    monkeypatch.setattr(linear.LinearGroup, "backward_a", lambda *_, **__: None)
    with pytest.raises(ModelError, match="gradient within") as refused:
        self_check.check(model, job)
    assert refused.value.hint == "--set engine=trl"


def test_a_gradient_that_is_not_a_number_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build(job)
    real = model.loss_and_gradients

    def with_nan(batch: FlatBatch, **more: Any) -> Any:
        loss = real(batch, **more)
        model.adapters.gradient[3] = float("nan")
        return loss

    monkeypatch.setattr(model, "loss_and_gradients", with_nan)
    with pytest.raises(ModelError, match="nan"):
        self_check.check(model, job)


def test_what_the_engine_decided_is_shown_and_recorded_with_its_reason(tmp_path: Path, llama: Path, rows: Path) -> None:
    view = Silent()
    run = train(tmp_path / "run", "train.max_steps=2", "engine=fast", model=llama, data=rows, view=view)
    (decided,) = [event for event in view.events if isinstance(event, Decided)]
    names = [decision.name for decision in decided.decisions]
    assert names == ["attention over documents", "kernels", "self-check"]
    assert [each["name"] for each in run.record["engine"]] == names
    assert all(each["why"] for each in run.record["engine"])


def test_a_model_of_no_family_goes_to_trl_with_the_reason(tmp_path: Path, rows: Path) -> None:
    model = make_model(tmp_path / "model", "llama")
    view = Silent()
    train(tmp_path / "run", "train.max_steps=1", "lora.dora=true", model=model, data=rows, view=view)
    (plan,) = view.plans
    decision = next(each for each in plan.decisions if each.name == "engine")
    assert (decision.value, decision.why) == ("trl", "the fast engine cannot be used: it has no DoRA")
