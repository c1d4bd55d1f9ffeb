"""The start-up check lets a sound model pass and refuses one that computes something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, make_model
from jobs import job_of
from whole_runs import Silent, train

from loradock.training.backends.fast import linear, self_check
from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.families.parts import Norm
from loradock.training.backends.fast.layer import Layer
from loradock.training.backends.fast.mixers.softmax import Softmax
from loradock.training.backends.fast.model import FastModel
from loradock.training.events import Decided
from loradock.training.job import Job, Unsound

pytestmark = pytest.mark.thin(2)


@pytest.fixture
def job(tmp_path: Path, llama: Path, rows: Path) -> Job:
    return job_of(tmp_path, "engine=fast", "lora.dropout=0.1", model=llama, data=rows)


@pytest.fixture(params=["float32", "bfloat16"])
def in_each(request: pytest.FixtureRequest, tmp_path: Path, llama: Path, rows: Path) -> Job:
    """The job in both compute dtypes: what is planted has to be found in either."""
    dtype = f"model.compute_dtype={request.param}"
    return job_of(tmp_path, "engine=fast", "lora.dropout=0.1", dtype, model=llama, data=rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sound_model_passes_in_every_dtype_and_is_left_as_it_was(dtype: str, job: Job) -> None:
    job = replace(job, plan=job.plan.with_value("compute_dtype", dtype, why="a test"))  # a CPU would not choose float16
    model, _ = build(job)
    state, values = torch.get_rng_state(), model.adapters.values.clone()
    found = self_check.check(model, job)
    assert found.is_sound
    assert found.leak == 0.0
    assert found.exact.adapter < 1e-4
    assert (found.rounded is None) == (dtype == "float32")
    assert model.dtype == model.adapters.fresh.dtype == getattr(torch, dtype)
    assert torch.equal(model.adapters.values, values)
    assert not model.adapters.gradient.any()
    assert all(each.grad is None for each in job.model.parameters())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_computed_in_float32_as_peft_does_it_and_in_bfloat16_no_worse(
    family: str, tmp_path: Path, rows: Path
) -> None:
    model = make_model(tmp_path / "model", family)
    settings = ("engine=fast", "model.compute_dtype=bfloat16")
    job = job_of(tmp_path, *settings, model=model, data=rows)
    before = {name: (each.dtype, each.clone()) for name, each in job.model.state_dict().items()}
    found = self_check.check(build(job)[0], job)
    assert found.exact.adapter < 1e-4
    assert found.rounded
    assert found.rounded.gradient > 1e-3, "in bfloat16 it is rounded"
    after = job.model.state_dict()
    assert all(after[name].dtype == dtype and torch.equal(after[name], each) for name, (dtype, each) in before.items())


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text"])
def test_rows_of_new_tokens_are_computed_as_peft_does_it(family: str, dtype: str, tmp_path: Path, rows: Path) -> None:
    """Gemma's embedding has a scale, Gemma 2's head a bound. No row of the data has these tokens."""
    model = make_model(tmp_path / "model", family)
    settings = ('tokenizer.add_tokens=["<go>","<to>"]', f"model.compute_dtype={dtype}", "engine=fast")
    job = job_of(tmp_path, *settings, "model.quantization=none", model=model, data=rows)
    fast = build(job)[0]
    assert len(self_check.kinds_of_weights(fast, job)) == 3
    found = self_check.check(fast, job)
    assert found.exact.adapter < 1e-4
    assert (found.rounded is None) == (dtype == "float32")
    assert fast.embedding_rows
    assert fast.head.rows
    for end in (fast.embedding_rows, fast.head.rows):
        right, end.ids = end.ids, end.ids.flip(0)
        with pytest.raises(Unsound):
            self_check.check(fast, job)
        end.ids = right


def test_whole_weights_in_bfloat16_are_computed_with_in_float32_as_peft_does_it(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    settings = ("engine=fast", "model.compute_dtype=bfloat16", "model.quantization=none")
    job = job_of(tmp_path, *settings, model=llama, data=rows)
    found = self_check.check(build(job)[0], job)
    assert found.exact.adapter < 1e-4
    assert all("forward" not in vars(module) for module in job.model.modules())


def test_a_model_as_far_from_float32_as_peft_is_passes_however_far_that_is(tmp_path: Path, rows: Path) -> None:
    """Large weights make bfloat16 as coarse as a real model does: PEFT is off by more than the old limit of 10 %."""
    model = make_model(tmp_path / "model", "llama", num_hidden_layers=8, initializer_range=0.25)
    job = job_of(tmp_path, "engine=fast", "model.compute_dtype=bfloat16", model=model, data=rows)
    found = self_check.check(build(job)[0], job)
    assert found.rounded
    assert found.pefts
    assert found.pefts.gradient > 0.1
    assert found.rounded.gradient > 0.1


def group_of(model: Any, name: str) -> Any:
    layer = model.layers[1]
    return getattr(layer.mixer if hasattr(layer.mixer, name) else layer.mlp, name)


@pytest.mark.thin(6)
@pytest.mark.parametrize("group", ["qkv", "output", "gate_up", "down"])
def test_a_scale_that_is_off_by_one_per_cent_in_one_layer_is_refused(group: str, in_each: Job) -> None:
    model, _ = build(in_each)
    wrong = group_of(model, group)
    wrong.adapters = [replace(each, scale=each.scale * 1.01) for each in wrong.adapters]
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, in_each)


@pytest.mark.thin(6)
@pytest.mark.parametrize("group", ["qkv", "output", "gate_up", "down"])
def test_an_adapter_that_is_dropped_from_one_layer_is_refused(group: str, in_each: Job) -> None:
    model, _ = build(in_each)
    wrong = group_of(model, group)
    wrong.adapters = [*wrong.adapters[:-1], replace(wrong.adapters[-1], scale=0.0)]
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, in_each)


@pytest.mark.parametrize("factor", [1.3, 0.0])
def test_what_is_wrong_in_bfloat16_alone_is_refused(factor: float, tmp_path: Path, llama: Path, rows: Path) -> None:
    """As a kernel may be that has no float32: here attention's gradient to the values."""
    job = job_of(tmp_path, "engine=fast", "model.compute_dtype=bfloat16", model=llama, data=rows)
    model, _ = build(job)
    mixer: Any = model.layers[1].mixer
    backend = mixer.attention

    class Wrong:
        def forward(self, *arguments: Any) -> Any:
            return backend.forward(*arguments)

        def backward(self, *arguments: Any) -> Any:
            dq, dk, dv = backend.backward(*arguments)
            return dq, dk, dv * factor

    mixer.attention = Wrong()
    with pytest.raises(Unsound, match="in the compute dtype from float32"):
        self_check.check(model, job)


def attention_in(layer: Layer) -> Softmax:
    assert isinstance(layer.mixer, Softmax)
    return layer.mixer


@pytest.mark.thin(6)
@pytest.mark.parametrize("leaking", [(0, 1), (1,)])
def test_documents_that_see_one_another_are_refused(leaking: tuple[int, ...], in_each: Job) -> None:
    """In all layers, or in one."""
    model, _ = build(in_each)
    backend = attention_in(model.layers[0]).attention

    def whole(q: torch.Tensor) -> Documents:
        return Documents(bounds=(0, len(q)), cu_seqlens=torch.tensor([0, len(q)], dtype=torch.int32), longest=len(q))

    class Leaking:
        def forward(self, q: Any, k: Any, v: Any, documents: Any, rule: Any) -> Any:
            return backend.forward(q, k, v, whole(q), rule)

        def backward(self, dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Any, documents: Any, rule: Any) -> Any:
            return backend.backward(dout, q, k, v, out, saved, whole(q), rule)

    for index in leaking:
        mixer: Any = model.layers[index].mixer
        mixer.attention = Leaking()
    with pytest.raises(Unsound, match=r"other documents move a loss by [1-9]"):
        self_check.check(model, in_each)


def with_near_queries(model: FastModel) -> None:
    """A layer's far queries are not multiplied."""
    mixer = attention_in(model.layers[1])
    mixer.query_table = mixer.table


def with_norm_before_attention(model: FastModel) -> None:
    """A layer's attention reads normed hidden states."""
    layer = model.layers[1]
    layer.parts = replace(layer.parts, mixer_norm=ones_like(layer.parts.mixer_out_norm))


def with_norm_before_mlp(model: FastModel) -> None:
    """A layer's MLP reads normed hidden states."""
    layer = model.layers[1]
    layer.parts = replace(layer.parts, mlp_norm=ones_like(layer.parts.mlp_out_norm))


def ones_like(norm: Norm | None) -> Norm:
    assert norm
    return replace(norm, weight=torch.ones_like(norm.weight))


def turned(model: FastModel) -> None:
    """A layer that turns nothing turns by positions, as the other does."""
    turning, still = (attention_in(layer) for layer in model.layers)
    assert turning.table
    assert still.table is None
    still.table = still.query_table = turning.table


def normed_before_they_turn(model: FastModel) -> None:
    """Queries and keys are."""
    mixer = attention_in(model.layers[1])
    mixer.parts = replace(mixer.parts, turns_first=False)


def in_halves(model: FastModel) -> None:
    """A column turns with that of the other half."""
    mixer = attention_in(model.layers[1])
    mixer.parts = replace(mixer.parts, is_interleaved=False)


def without_norm_of_values(layer: int) -> Callable[[FastModel], None]:
    """Values are as long as they are; those of the last layer are its keys."""

    def fault(model: FastModel) -> None:
        mixer = attention_in(model.layers[layer])
        mixer.parts = replace(mixer.parts, value_norm=None)

    return fault


def without_gradient_of_values(model: FastModel) -> None:
    """Keys that are values, too, get the gradient of keys alone."""
    mixer: Any = attention_in(model.layers[1])
    whole, norm = mixer._head_norm_backward, mixer.parts.value_norm
    assert not mixer.parts.has_values
    mixer._head_norm_backward = lambda dy, x, rstd, of: whole(dy, x, rstd, of) * (of is not norm)


def without_scale(model: FastModel) -> None:
    """What comes out of a layer is not multiplied."""
    model.layers[0].parts = replace(model.layers[0].parts, scale=1.0)


def without_scale_of_gradients(model: FastModel) -> None:
    """What comes out of a layer is multiplied, its gradient is not."""
    layer: Any = model.layers[0]
    whole, scale = layer.backward, layer.parts.scale
    layer.backward = lambda dz, kept, batch: whole(dz / scale, kept, batch)


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("smollm3", turned),
        ("ministral3", with_near_queries),
        ("olmo3", with_norm_before_attention),
        ("olmo3", with_norm_before_mlp),
        ("exaone4", turned),
        ("hunyuan_v1_dense", normed_before_they_turn),
        ("glm4", in_halves),
        ("gemma4_text", without_norm_of_values(0)),
        ("gemma4_text", without_norm_of_values(1)),
        ("gemma4_text", without_gradient_of_values),
        ("gemma4_text", without_scale),
        ("gemma4_text", without_scale_of_gradients),
    ],
)
def test_what_is_wrong_in_what_a_family_has_for_itself_is_refused(
    family: str, fault: Callable[[FastModel], None], tmp_path: Path, rows: Path
) -> None:
    model = make_model(tmp_path / "model", family)
    job = job_of(tmp_path, "engine=fast", "model.compute_dtype=bfloat16", model=model, data=rows)
    fast, _ = build(job)
    self_check.check(fast, job)
    fault(fast)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(fast, job)


def test_a_gradient_that_is_not_pefts_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build(job)
    monkeypatch.setattr(linear.LinearGroup, "backward_a", lambda *_, **__: None)
    with pytest.raises(Unsound, match="does not compute what PEFT computes") as refused:
        self_check.check(model, job)
    assert refused.value.hint == "--set engine=peft"


@pytest.mark.thin(6)
@pytest.mark.parametrize("left_out", ["backward_a", "backward_b", "backward_input"])
def test_an_adapter_that_is_left_out_is_refused_though_b_begins_at_zero(
    left_out: str, in_each: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_each
    for name, parameter in job.model.named_parameters():
        if "lora_B" in name:
            parameter.data.zero_()
    model, _ = build(job)
    values = model.adapters.values.clone()
    assert self_check.check(model, job).exact.gradient < 1e-4
    assert torch.equal(model.adapters.values, values)
    whole = linear.LinearGroup.backward_input
    of_the_base = {"backward_input": lambda group, dy, _, *, keys: whole(group, dy, None, keys=keys)}
    monkeypatch.setattr(linear.LinearGroup, left_out, of_the_base.get(left_out, lambda *_, **__: None))
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
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
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def test_a_gradient_that_is_not_a_number_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build(job)
    real = model.loss_and_gradients

    def with_nan(batch: FlatBatch, **more: Any) -> Any:
        loss = real(batch, **more)
        model.adapters.gradient[3] = float("nan")
        return loss

    monkeypatch.setattr(model, "loss_and_gradients", with_nan)
    with pytest.raises(Unsound, match="nan"):
        self_check.check(model, job)


def test_what_the_engine_decided_is_shown_and_recorded_with_its_reason(tmp_path: Path, llama: Path, rows: Path) -> None:
    view = Silent()
    settings = ("train.max_steps=2", "engine=fast", "checkpoints.every=1")
    run = train(tmp_path / "run", *settings, model=llama, data=rows, view=view)
    decided = [event for event in view.events if isinstance(event, Decided)]
    names = [decision.name for event in decided for decision in event.decisions]
    assert names == ["attention over documents", "self-check", "saving"]
    assert [each["name"] for each in run.record["engine"]] == names
    assert all(each["why"] for each in run.record["engine"])


@pytest.mark.thin(4)
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
    assert (decision.value, decision.why) == ("peft", f"the fast engine cannot be used: {why}")
