"""Faults that others have had in contrastive training, planted here: the loss hides most of them, the checks do not.

The first two are rules of the speed guide behind the preset seed-004; docs/tuning.md has their figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loradock.data.corpus import prepare_corpus
from loradock.errors import DataError, ModelError
from loradock.training.backends import autograd
from loradock.training.backends.fast.batch import PooledBatch
from loradock.training.backends.fast.vector_check import Vectors
from loradock.training.batches import StepItems
from loradock.training.checkpoint.state import RandomState
from loradock.training.job import Unsound
from loradock.training.objectives import embedding
from loradock.training.objectives.contrastive import contrast
from objectives.reference import (
    NEEDS_REFERENCE,
    distance,
    first_step,
    flat_gradient,
    joint_steps,
    norm,
    recorded,
    reference_job,
    relative,
)

pytestmark = [NEEDS_REFERENCE, pytest.mark.thin(1)]
FAR = 0.1
TOLERANCE = 1e-5


def step_of(folder: Path, passes: str, *settings: str) -> tuple[float, torch.Tensor]:
    """Loss and gradient of a first step of the peft backend, in passes of two documents."""
    folder.mkdir()
    asked = ("engine=peft", "train.micro_batch=2", f"embedding.passes={passes}", *settings)
    job = reference_job(folder, *asked)
    torch.manual_seed(5)
    loop, (loss, _) = first_step(job)
    return loss, flat_gradient(job, loop)


def planted(folder: Path, plant: Callable[[], None], *settings: str) -> tuple[float, float]:
    """How far loss and gradient of passes that run twice are, with the fault, from those that run once without."""
    loss, gradient = step_of(folder / "direct", "direct", *settings)
    plant()
    other, changed = step_of(folder / "cached", "cached", *settings)
    return abs(other - loss), distance(changed, gradient)


def test_a_second_forward_with_other_dropout_is_seen_in_the_gradient_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, gradient = planted(
        tmp_path, lambda: monkeypatch.setattr(RandomState, "restore", lambda _: None), "lora.dropout=0.1"
    )
    assert loss == 0.0
    assert gradient > FAR


def test_an_attention_mask_that_the_first_forward_has_changed_is_seen_in_the_gradient_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = autograd.pooled

    def mutating(model: Any, tensors: dict[str, torch.Tensor], **more: Any) -> torch.Tensor:
        vectors = real(model, tensors, **more)
        tensors["attention_mask"].mul_(tensors["pooling"] > 0)  # what a missing clone does
        return vectors

    loss, gradient = planted(tmp_path, lambda: monkeypatch.setattr(autograd, "pooled", mutating))
    assert loss == 0.0
    assert gradient > FAR


def test_one_loss_divided_by_the_number_of_processes_is_no_longer_the_references_balance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = joint_steps()[0]
    loop, _ = first_step(reference_job(tmp_path, objective="gritlm"))
    assert relative([norm(loop)], [wanted["grad_norm"]]) < TOLERANCE

    def halved(*arguments: Any, **more: Any) -> Any:
        found = contrast(*arguments, **more)
        return replace(found, gradient=found.gradient / 2)

    monkeypatch.setattr(embedding, "contrast", halved)
    again, _ = first_step(reference_job(tmp_path, objective="gritlm"))
    assert relative([norm(again)], [wanted["grad_norm"]]) > FAR


def test_documents_that_see_one_another_under_bidirectional_attention_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Vectors.batch

    def leaking(self: Vectors, *arguments: Any, **more: Any) -> PooledBatch:
        batch = real(self, *arguments, **more)
        whole = (0, batch.tokens)
        cu_seqlens = torch.tensor(whole, dtype=torch.int32)
        documents = replace(batch.documents, bounds=whole, cu_seqlens=cu_seqlens, longest=batch.tokens)
        return replace(batch, documents=documents)

    monkeypatch.setattr(Vectors, "batch", leaking)
    with pytest.raises(Unsound, match="does not compute what PEFT computes: other documents move a loss by"):
        first_step(reference_job(tmp_path))


def test_causal_attention_in_the_place_of_bidirectional_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Vectors.batch

    def causal(self: Vectors, *arguments: Any, **more: Any) -> PooledBatch:
        batch = real(self, *arguments, **more)
        return replace(batch, documents=replace(batch.documents, is_causal=True))

    monkeypatch.setattr(Vectors, "batch", causal)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        first_step(reference_job(tmp_path))


def test_a_text_that_is_embedded_as_zeros_is_refused(tmp_path: Path) -> None:
    job = reference_job(tmp_path, "engine=peft")
    loop, _ = first_step(job)
    with torch.no_grad():
        job.model.get_decoder().norm.weight.zero_()
    inputs = StepItems(job.steps, loop.backend.tensors)[0]
    with pytest.raises(ModelError, match="a text was embedded as a vector of zeros, which has no direction"):
        job.objective.step(loop.backend, inputs, step=0, poll=lambda: None)


def test_a_pooled_instruction_is_another_loss(tmp_path: Path) -> None:
    _, (loss, _) = first_step(reference_job(tmp_path, "embedding.pool_instruction=true"))
    assert relative([loss], [recorded()["mean/bbcc/g2"]["loss_emb"]]) > 100 * TOLERANCE


def test_a_positive_among_the_negatives_is_refused_with_its_line(tmp_path: Path) -> None:
    job = reference_job(tmp_path)
    file = tmp_path / "pairs.jsonl"
    lines = file.read_text("utf-8").splitlines()
    lines[2] = '{"query": "q", "pos": ["same"], "neg": ["other", "same"]}'
    file.write_text("\n".join(lines), "utf-8")
    from loradock.machine import Host, probe

    with pytest.raises(DataError) as error:
        prepare_corpus(job.config, tokenizer=job.tokenizer, max_length=512, facts=probe.gather(Host()))
    assert str(error.value.problems[0]).startswith(f"{file}:3: a positive is among the negatives: 'same'")
