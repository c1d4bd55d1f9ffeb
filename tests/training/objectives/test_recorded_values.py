"""The losses and gradient norms that GritLM's own code gives, by both backends and any micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import trained

from loradock.plan.knobs.held_passes import ALL
from loradock.training.events import StepResult
from objectives.reference import (
    BUDGETS,
    CASES,
    GENERATIVE,
    NEEDS_REFERENCE,
    Budget,
    distance,
    first_step,
    flat_gradient,
    joint_steps,
    norm,
    recorded,
    reference_job,
    relative,
    reshaped,
    settings_of,
)

pytestmark = NEEDS_REFERENCE
BOUND = 1e-5
ENGINES = ("fast", "peft")


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ["fast", pytest.param("peft", marks=pytest.mark.full)])
@pytest.mark.parametrize("case", CASES)
def test_each_pooling_and_attention_gives_the_references_loss_and_gradient_in_any_passes(
    tmp_path: Path, case: str, engine: str
) -> None:
    job = reference_job(tmp_path, *settings_of(case, engine=engine), group=CASES[case][2])
    wanted = recorded()[case]
    for budget in BUDGETS:
        loop, (loss, _) = first_step(reshaped(job, budget))
        assert relative([loss, norm(loop)], [wanted["loss_emb"], wanted["grad_norm"]]) < BOUND, budget


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ENGINES)
def test_passes_that_run_twice_have_the_bits_of_those_that_stay_with_dropout_too(tmp_path: Path, engine: str) -> None:
    found = []
    for passes in ("direct", "cached"):
        folder = tmp_path / passes
        folder.mkdir()
        settings = (f"engine={engine}", f"embedding.passes={passes}", "train.micro_batch=2", "lora.dropout=0.1")
        job = reference_job(folder, *settings)
        torch.manual_seed(3)
        loop, (loss, _) = first_step(job)
        found.append((loss, flat_gradient(job, loop)))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_passes_that_stay_give_the_same_bits(tmp_path: Path, engine: str) -> None:
    job = reference_job(tmp_path, f"engine={engine}", "train.micro_batch=2", "embedding.passes=cached")
    first, (loss, _) = first_step(job)
    expected = flat_gradient(job, first)
    again, (other, _) = first_step(reshaped(job, (2, 2)))
    assert (other, distance(flat_gradient(job, again), expected)) == (loss, 0.0)


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", GENERATIVE)
def test_both_generative_losses_are_the_references_in_any_passes(tmp_path: Path, case: str, engine: str) -> None:
    settings = (f"engine={engine}", f"train.generative_loss={GENERATIVE[case]}", "embedding.weight=1e-30")
    job = reference_job(tmp_path, *settings, objective="gritlm")
    wanted = recorded()[case]
    for budget in BUDGETS:
        loop, (_, _, loss, _) = first_step(reshaped(job, budget))
        assert relative([loss, norm(loop)], [wanted["loss_gen"], wanted["grad_norm"]]) < BOUND, budget


@pytest.mark.thin(6)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("budget", [(24, ALL), (3, 0)])
def test_five_joint_steps_are_the_references(tmp_path: Path, engine: str, budget: Budget) -> None:
    _, events = trained(reshaped(reference_job(tmp_path, f"engine={engine}", objective="gritlm"), budget))
    lines = [event for event in events if isinstance(event, StepResult)]
    for line, wanted in zip(lines, joint_steps(), strict=True):
        found = [line.parts["embedding_loss"], line.parts["generative_loss"], line.grad_norm]
        assert relative(found, [wanted["loss_emb"], wanted["loss_gen"], wanted["grad_norm"]]) < BOUND
        assert abs(line.loss - wanted["loss_emb"] - wanted["loss_gen"]) < BOUND * line.loss
