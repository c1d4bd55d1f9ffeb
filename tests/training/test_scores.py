"""The log-probability of each document, its gradient, and the base without its adapter: what preferences need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of

from loradock.data.collate import MicroBatch
from loradock.distributed.stragglers import Pace
from loradock.model import adapters
from loradock.training.backends import backend_named
from loradock.training.backends.base import Backend
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.passes import MicroStep

pytestmark = pytest.mark.thin(1)

AT = MicroStep(step=0, index=0, count=1)
FORMS = {
    "fast": ("engine=fast",),
    "peft packed": ("engine=peft", "train.packing=true"),
    "peft padded": ("engine=peft", "train.packing=false"),
}


def begun(folder: Path, *settings: str, model: Path, data: Path) -> Backend:
    job = job_of(folder, "train.micro_batch=4", "lora.alpha=32", *settings, model=model, data=data)
    backend = backend_named(job.plan.engine.value)(job)
    backend.prepare()
    backend.begin(job, Pace(torch.device("cpu")), lambda _: None)
    return backend


def first_batch(backend: Backend) -> tuple[MicroBatch, Any]:
    batch = backend.job.steps[0].micro_batches[0]
    return batch, backend.tensors(batch)[0]


def gradient_of(backend: Backend) -> torch.Tensor:
    if isinstance(backend, FastBackend):
        flat = backend.model.adapters
        found = {id(each): flat.view(flat.gradient, [each], each.shape) for each in flat.parameters}
        parameters = adapters.trainable(backend.job.model)
        return torch.cat([found[id(each)].flatten() for each in parameters]).clone()
    return torch.cat([each.grad.flatten() for each in adapters.trainable(backend.job.model)]).clone()


def by_hand(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Each document by itself through transformers' own forward, float32 [documents]."""
    sums = []
    for ids, mask in batch.samples():
        tokens = torch.from_numpy(ids.astype("int64"))[None]
        log_p = model(input_ids=tokens).logits.float().log_softmax(-1)[0, :-1]
        learned = torch.from_numpy(mask[1:].copy())
        sums.append((log_p.gather(1, tokens[0, 1:, None])[:, 0] * learned).sum())
    return torch.stack(sums)


@pytest.mark.parametrize("form", FORMS)
def test_scores_and_their_gradients_are_those_of_each_document_by_itself(
    form: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    backend = begun(tmp_path, *FORMS[form], model=llama, data=rows)
    batch, tensors = first_batch(backend)
    model, count = backend.job.model, len(batch.rows)
    assert batch.is_packed == (form != "peft padded")
    assert count > 1
    model.eval()

    expected = by_hand(model, batch)
    factors = torch.linspace(-1, 2, count)
    gradients = torch.autograd.grad((expected * factors).sum(), adapters.trainable(model))
    found = {}
    for keeps in (True, False):
        backend.begin_step()
        for parameter in adapters.trainable(model):
            parameter.grad = None
        scored = backend.score(tensors, at=AT, keeps=keeps)
        sums = scored.log_probabilities
        assert sums.dtype == torch.float32
        torch.testing.assert_close(sums[:count], expected.detach(), rtol=2e-5, atol=2e-4)
        assert not sums[count:].any()
        scored.backward(torch.nn.functional.pad(factors, (0, len(sums) - count)))
        found[keeps] = gradient_of(backend)
    assert torch.equal(found[True], found[False])
    whole = torch.cat([each.flatten() for each in gradients])
    assert (found[True] - whole).norm() < 1e-4 * whole.norm()


@pytest.mark.parametrize("form", FORMS)
def test_without_the_adapter_the_scores_are_the_bases_and_then_the_adapters_again(
    form: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    backend = begun(tmp_path, *FORMS[form], model=llama, data=rows)
    batch, tensors = first_batch(backend)
    model, count = backend.job.model, len(batch.rows)
    model.eval()
    before = backend.score(tensors, at=None, keeps=False).log_probabilities
    values = [each.detach().clone() for each in adapters.trainable(model)]
    with torch.no_grad(), model.disable_adapter():
        expected = by_hand(model, batch)
    with backend.reference_model():
        base = backend.score(tensors, at=None, keeps=False).log_probabilities
    torch.testing.assert_close(base[:count], expected, rtol=2e-5, atol=2e-4)
    assert (base - before).abs().max() > 0.01
    assert torch.equal(backend.score(tensors, at=None, keeps=False).log_probabilities, before)
    assert all(torch.equal(one, other) for one, other in zip(values, adapters.trainable(model), strict=True))


def test_a_second_forward_draws_the_dropout_of_the_first(tmp_path: Path, llama: Path, rows: Path) -> None:
    for engine in ("fast", "peft"):
        backend = begun(tmp_path / engine, f"engine={engine}", "lora.dropout=0.3", model=llama, data=rows)
        _, tensors = first_batch(backend)
        backend.job.model.train()
        found = []
        for keeps in (True, False):
            torch.manual_seed(5)
            backend.begin_step()
            for parameter in adapters.trainable(backend.job.model):
                parameter.grad = None
            scored = backend.score(tensors, at=AT, keeps=keeps)
            scored.backward(torch.ones_like(scored.log_probabilities))
            found.append((scored.log_probabilities, gradient_of(backend)))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])
