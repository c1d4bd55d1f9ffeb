"""The start-up check lets a sound model pass and refuses one that computes something else."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("left_out", ["backward_a", "backward_b", "_add_input_gradient"])
def test_an_adapter_that_is_left_out_is_refused_though_b_begins_at_zero(
    left_out: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, parameter in job.model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    model, _ = build(job)
    values = model.adapters.values.clone()
    assert self_check.check(model, job).gradient < 1e-4
    assert torch.equal(model.adapters.values, values)
    monkeypatch.setattr(linear.LinearGroup, left_out, lambda *_, **__: None)
    with pytest.raises(ModelError, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def test_rows_of_which_only_the_end_is_learned_are_compared_too(
    tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"instruction": "river apple stone cloud " * 80, "output": "window"}
    data = tmp_path / "long.jsonl"
    data.write_text(f"{json.dumps(row)}\n" * 8, encoding="utf-8")
    job = job_of(tmp_path, "engine=fast", model=llama, data=data, max_length=500)
    model, _ = build(job)
    monkeypatch.setattr(linear.LinearGroup, "backward_a", lambda *_, **__: None)
    with pytest.raises(ModelError, match="does not compute what PEFT computes"):
        self_check.check(model, job)


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
    assert names == ["attention over documents", "self-check"]
    assert [each["name"] for each in run.record["engine"]] == names
    assert all(each["why"] for each in run.record["engine"])


@pytest.mark.parametrize(
    ("setting", "shape", "why"),
    [
        ("lora.dora=true", {}, "it has no DoRA"),
        ("lora.rank=4", {"attention_dropout": 0.1}, "the model has attention_dropout 0.1"),
        (
            "lora.rank=4",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "the model's rotary embedding depends on the length of the input",
        ),
    ],
)
def test_what_the_fast_engine_does_not_serve_goes_to_trl_with_the_reason(
    setting: str, shape: dict[str, Any], why: str, tmp_path: Path, rows: Path
) -> None:
    model = make_model(tmp_path / "model", "llama", **shape)
    view = Silent()
    train(tmp_path / "run", "train.max_steps=1", setting, model=model, data=rows, view=view)
    (plan,) = view.plans
    decision = next(each for each in plan.decisions if each.name == "engine")
    assert (decision.value, decision.why) == ("trl", f"the fast engine cannot be used: {why}")
