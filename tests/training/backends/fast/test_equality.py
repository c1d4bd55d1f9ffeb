"""The fast engine computes what PEFT and TRL compute: losses, gradients and twenty steps, for every family.

The reference is autograd over the same PeftModel, row by row, or the peft backend on the same steps. All in float32 on
the CPU with NF4 weights; B is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES, make_model
from jobs import assert_close, gradients, job_of
from safetensors.torch import load_file
from whole_runs import losses, train

from loradock.catalog.families import BY_DECODER
from loradock.data.collate import MicroBatch
from loradock.training.backends.fast import families, linear
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.attention.base import Documents, Rule
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.inputs import flat_inputs
from loradock.training.backends.fast.kernels import plain
from loradock.training.backends.fast.mixers import recurrent, softmax
from loradock.training.backends.fast.model import FastModel
from loradock.training.job import Job

pytestmark = pytest.mark.thin(2)

Models = Callable[[str], Path]
Computed = tuple[float, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("families")
    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        if family not in made:
            made[family] = make_model(folder / family, family)
        return made[family]

    return model


def flat_batch(job: Job, batch: MicroBatch | None = None, *, salt: int | None = None) -> FlatBatch:
    micro_batch = batch or job.steps[0].micro_batches[0]
    shape = {"pad_token_id": 0, "longest": job.plan.data.limit_tokens, "has_dropout": True}
    return flat_inputs(micro_batch, **shape)[0].masked_by(salt)


def fast(job: Job, model: FastModel, *, salt: int | None = None) -> Computed:
    """Loss and gradients of the first micro-batch, by the fast engine; with a salt under the masks that follow."""
    model.adapters.gradient.zero_()
    loss = model.loss_and_gradients(flat_batch(job, salt=salt), scale=1.0)
    flat = model.adapters
    return float(loss), {
        name: flat.view(flat.gradient, [each], each.shape).clone()
        for name, each in job.model.named_parameters()
        if each.requires_grad
    }


def reference(job: Job) -> Computed:
    """The same by autograd over the PeftModel, each row alone."""
    batch = job.steps[0].micro_batches[0]
    job.model.zero_grad()
    total = 0.0
    for ids, mask in batch.samples():
        tokens = torch.from_numpy(ids.astype("int64"))
        logits = job.model(input_ids=tokens[None], use_cache=False).logits[0, :-1].float()
        learned = torch.from_numpy(mask[1:].copy())
        loss = torch.nn.functional.cross_entropy(logits[learned], tokens[1:][learned], reduction="sum")
        loss.backward()
        total += loss.item()
    return total, gradients(job.model)


def same(found: Computed, expected: Computed) -> None:
    """Within float32's rounding: sums of thousands of terms in another order; most gradients are of the order of 1."""
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    largest = max(float(each.abs().max()) for each in expected[1].values())
    assert_close(found[1], expected[1], absolute=2e-5 * max(1.0, largest / 10))


def job_for(family: str, folder: Path, model: Path, data: Path, *settings: str) -> Job:
    return job_of(folder, "engine=fast", "train.micro_batch=4", *settings, model=model, data=data)


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_equal_those_of_peft(family: str, tmp_path: Path, models: Models, rows: Path) -> None:
    job = job_for(family, tmp_path, models(family), rows)
    expected = reference(job)
    found = fast(job, build(job)[0])
    same(found, expected)


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma2"])
def test_twenty_steps_equal_those_of_the_peft_backend(family: str, tmp_path: Path, models: Models, rows: Path) -> None:
    settings = ["train.max_steps=20", "train.global_batch=4", "train.micro_batch=2", "lora.rank=4", "logging.every=1"]
    settings += ["train.learning_rate=1e-3", "lora.init=gaussian", "data.max_length=64"]
    runs = [
        train(tmp_path / engine, *settings, f"engine={engine}", model=models(family), data=rows)
        for engine in ("fast", "peft")
    ]
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=2e-4)
    first, second = (load_file(run.adapter / "adapter_model.safetensors") for run in runs)
    assert_close(first, second, relative=1e-2, absolute=2e-5)


@pytest.mark.parametrize("targets", ["[q_proj,v_proj]", "[o_proj,down_proj]"])
def test_layers_without_an_adapter_are_passed_through(targets: str, tmp_path: Path, models: Models, rows: Path) -> None:
    job = job_for("llama", tmp_path, models("llama"), rows, f"lora.targets={targets}", "lora.rslora=true")
    expected = reference(job)
    found = fast(job, build(job)[0])
    same(found, expected)


def test_whole_weights_give_the_gradients_of_peft_too(tmp_path: Path, models: Models, rows: Path) -> None:
    job = job_for("llama", tmp_path, models("llama"), rows, "model.quantization=none")
    expected = reference(job)
    found = fast(job, build(job)[0])
    same(found, expected)


def test_bfloat16_is_near_float32(tmp_path: Path, models: Models, rows: Path) -> None:
    exact = job_for("llama", tmp_path / "a", models("llama"), rows)
    rounded = job_for("llama", tmp_path / "b", models("llama"), rows, "model.compute_dtype=bfloat16")
    first, second = fast(exact, build(exact)[0]), fast(rounded, build(rounded)[0])
    assert second[0] == pytest.approx(first[0], rel=5e-3)
    for name, gradient in first[1].items():
        assert (second[1][name] - gradient).norm() < 0.1 * gradient.norm(), name


@pytest.mark.thin(6)
@pytest.mark.parametrize("family", ["llama", "phi3", "gemma2", "gemma4_small"])
@pytest.mark.parametrize("switch", [{"checkpointed": 1}, {"checkpointed": 2}, {"cached": 1}, {"cached": 2}])
def test_checkpointed_and_cached_layers_give_the_same_bits_with_dropout(
    switch: dict[str, int], family: str, tmp_path: Path, models: Models, rows: Path
) -> None:
    job = job_for(family, tmp_path, models(family), rows, "lora.dropout=0.2")
    plain_model = build(job)[0]
    mixer: Any = plain_model.layers[0].mixer
    state = torch.get_rng_state()
    expected = fast(job, plain_model, salt=5)
    mixer: Any = plain_model.layers[0].mixer
    other = FastModel(
        job.model,
        positions=job.plan.data.limit_tokens,
        dtype=torch.float32,
        attention_of=lambda _: mixer.attention,
        kernels=plain,
        checkpointed=switch.get("checkpointed", 0),
    )
    other.keep_dense(switch.get("cached", 0))
    found = fast(job, other, salt=5)
    assert found[0] == expected[0]
    assert all(torch.equal(found[1][name], gradient) for name, gradient in expected[1].items())
    assert torch.equal(state, torch.get_rng_state())  # masks follow from step and token, not from the run's generator
    assert fast(job, other, salt=6)[0] != expected[0]


def test_gradients_with_dropout_are_those_of_the_masked_computation(tmp_path: Path, models: Models, rows: Path) -> None:
    """By finite differences: the same salt gives the same masks, so the loss is a smooth function of the weights."""
    job = job_for("llama", tmp_path, models("llama"), rows, "lora.dropout=0.3")
    model = build(job)[0]
    _, found = fast(job, model, salt=9)
    flat = model.adapters
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(flat.values.shape, generator=generator)
    by_name = {name: p for name, p in job.model.named_parameters() if p.requires_grad}
    slope = sum(
        float((found[name].double() * flat.view(direction, [p], p.shape).double()).sum()) for name, p in by_name.items()
    )
    step, values = 1e-3, flat.values.clone()
    ends = []
    for sign in (1, -1):
        flat.values.copy_(values + sign * step * direction)
        ends.append(fast(job, model, salt=9)[0])
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=2e-2)


def test_packed_rows_give_the_losses_and_gradients_they_have_alone(tmp_path: Path, models: Models, rows: Path) -> None:
    job = job_for("qwen2", tmp_path, models("qwen2"), rows)
    model = build(job)[0]
    packed = fast(job, model)
    whole = job.steps[0].micro_batches[0]
    model.adapters.gradient.zero_()
    total = 0.0
    for index in range(len(whole.rows)):
        one = slice(index, index + 1)
        arrays = {name: getattr(whole, name)[one] for name in ("rows", "places", "starts", "lengths", "contexts")}
        alone = replace(whole, **arrays)
        total += float(model.loss_and_gradients(flat_batch(job, alone), scale=1.0))
    flat = model.adapters
    found = {n: flat.view(flat.gradient, [p], p.shape) for n, p in job.model.named_parameters() if p.requires_grad}
    assert total == pytest.approx(packed[0], rel=1e-5)
    assert_close(found, packed[1])


def test_filling_up_to_a_static_shape_changes_nothing(tmp_path: Path, models: Models, rows: Path) -> None:
    job = job_for("llama", tmp_path, models("llama"), rows)
    model = build(job)[0]
    expected = fast(job, model)
    tensors, slots = flat_inputs(job.steps[0].micro_batches[0], pad_token_id=0, longest=64, multiple=192)
    assert slots % 192 == 0
    assert len(tensors.rows) % 192 == 0
    model.adapters.gradient.zero_()
    loss = float(model.loss_and_gradients(tensors, scale=1.0))
    flat = model.adapters
    found = {n: flat.view(flat.gradient, [p], p.shape) for n, p in job.model.named_parameters() if p.requires_grad}
    assert loss == pytest.approx(expected[0], rel=1e-6)
    assert_close(found, expected[1])


def test_each_module_of_a_family_is_named_in_the_catalog() -> None:
    files = {file.stem for file in Path(families.__file__).parent.glob("*.py")} - {"__init__", "base", "parts"}
    assert files == {family.module for family in BY_DECODER.values()}


def one_document(self: Any, *arguments: Any, **more: Any) -> Any:
    """A planted error: documents see one another."""
    q, k, v, _, rule = arguments
    total = q.shape[0]
    whole = Documents(bounds=(0, total), cu_seqlens=torch.tensor([0, total], dtype=torch.int32), longest=total)
    return REAL_ATTENTION(self, q, k, v, whole, rule)


@pytest.mark.thin(4)
def test_a_working_copy_that_is_not_refreshed_is_caught(
    tmp_path: Path, models: Models, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 the forward reads a copy of the float32 values, which every step has to make anew."""
    settings = ["train.max_steps=20", "train.global_batch=4", "lora.rank=4", "logging.every=1", "engine=fast"]
    settings += ["train.learning_rate=2e-3", "train.schedule=constant"]

    def curve(name: str, dtype: str) -> list[float]:
        chosen = (*settings, f"model.compute_dtype={dtype}")
        return losses(train(tmp_path / name, *chosen, model=models("llama"), data=rows))

    exact = curve("float32", "float32")
    assert curve("bfloat16", "bfloat16") == pytest.approx(exact, rel=1e-2)
    real = FlatAdapters.refresh
    monkeypatch.setattr(FlatAdapters, "refresh", lambda self: real(self) if not self.gradient.any() else None)
    assert curve("stale", "bfloat16") != pytest.approx(exact, rel=1e-2)


def wider_window(self: Any, q: Any, k: Any, v: Any, documents: Documents, rule: Rule) -> Any:
    """A planted error: one token too many."""
    return REAL_ATTENTION(self, q, k, v, documents, replace(rule, window=rule.window + 1 if rule.window else None))


REAL_ATTENTION: Any = None
REAL_GROUP = linear.LinearGroup.__init__


def wrong_scale(self: Any, *arguments: Any, **more: Any) -> None:
    """A planted error: LoRA's scale is left out."""
    REAL_GROUP(self, *arguments, **more)
    self.adapters = [replace(each, scale=1.0) for each in self.adapters]


def one_state(documents: Documents, *, device: torch.device, **_: int) -> Iterator[recurrent.Together]:
    """A planted error: a recurrent layer takes all documents for one."""
    tokens = torch.arange(documents.bounds[-1], device=device)
    yield recurrent.Together(tokens=tokens, places=tokens, shape=(1, len(tokens)))


def ungated(*arguments: Any, real: Any = softmax.gated_backward) -> Any:
    """A planted error: the gate of attention's output has no gradient."""
    dout, dgate = real(*arguments)
    return dout, torch.zeros_like(dgate)


PLANTED: dict[str, tuple[str, Any, str, Callable[..., Any]]] = {
    "wrong scale": ("llama", linear.LinearGroup, "__init__", wrong_scale),
    "unrotated gradient": ("llama", softmax.Softmax, "_rotate", lambda *_, **__: None),
    "a state of another document": ("lfm2", recurrent, "groups", one_state),
    "a gate without gradient": ("qwen3_5_text", softmax, "gated_backward", ungated),
    "lost gradients": ("llama", FlatAdapters, "accumulate", lambda _: None),
    "skipped residual": (
        "llama",
        plain,
        "rms_norm_backward",
        lambda *a, real=plain.rms_norm_backward, **k: real(*a, **{**k, "into": None}),
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_in_the_computation_is_caught(
    planted: str, tmp_path: Path, models: Models, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, owner, name, wrong = PLANTED[planted]
    job = job_for(family, tmp_path, models(family), rows)
    expected = reference(job)
    monkeypatch.setattr(owner, name, wrong)
    found = fast(job, build(job)[0])
    with pytest.raises(AssertionError):
        same(found, expected)


@pytest.mark.parametrize(("planted", "family"), [(one_document, "llama"), (wider_window, "mistral")])
def test_a_planted_error_in_the_mask_is_caught(
    planted: Any, family: str, tmp_path: Path, models: Models, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_for(family, tmp_path, models(family), rows)
    expected = reference(job)
    model = build(job)[0]
    mixer: Any = model.layers[0].mixer
    backend = type(mixer.attention)
    monkeypatch.setitem(globals(), "REAL_ATTENTION", backend.forward)
    monkeypatch.setattr(backend, "forward", planted)
    assert float(model.loss(flat_batch(job))) != pytest.approx(expected[0], rel=1e-5)
