"""The losses and gradient norms that GritLM's own code gives, by both backends and any micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import trained

from loradock.training.events import StepResult
from objectives.reference import (
    NEEDS_REFERENCE,
    distance,
    first_step,
    flat_gradient,
    norm,
    recorded,
    reference_job,
    relative,
)

pytestmark = NEEDS_REFERENCE
BOUND = 1e-5
ENGINES = ("fast", "peft")
PASSES = (
    ("embedding.passes=direct", "train.micro_batch=24"),
    ("embedding.passes=direct", "train.micro_batch=3"),
    ("embedding.passes=cached", "train.micro_batch=1"),
    ("embedding.passes=cached", "train.micro_batch=3"),
)
CASES = {
    "mean/bbcc/g2": ("mean", "bidirectional", 2),
    "mean/bbcc/g8": ("mean", "bidirectional", 8),
    "mean/cccc/g2": ("mean", "causal", 2),
    "weightedmean/bbcc/g2": ("weightedmean", "bidirectional", 2),
    "lasttoken/bbcc/g2": ("lasttoken", "bidirectional", 2),
    "cls/bbcc/g2": ("cls", "bidirectional", 2),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_each_pooling_and_attention_gives_the_references_loss_and_gradient(
    tmp_path: Path, case: str, engine: str
) -> None:
    pooling, attention, group = CASES[case]
    settings = (f"engine={engine}", f"embedding.pooling={pooling}", f"embedding.attention={attention}")
    loop, (loss, _) = first_step(reference_job(tmp_path, *settings, group=group))
    wanted = recorded()[case]
    assert relative([loss, norm(loop)], [wanted["loss_emb"], wanted["grad_norm"]]) < BOUND


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("settings", PASSES)
def test_neither_passes_nor_their_size_change_what_is_computed(
    tmp_path: Path, engine: str, settings: tuple[str, ...]
) -> None:
    loop, (loss, _) = first_step(reference_job(tmp_path, f"engine={engine}", *settings, group=8))
    wanted = recorded()["mean/bbcc/g8"]
    assert relative([loss, norm(loop)], [wanted["loss_emb"], wanted["grad_norm"]]) < BOUND


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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_few_passes_that_stay_give_the_same_bits(tmp_path: Path, engine: str) -> None:
    job = reference_job(tmp_path, f"engine={engine}", "train.micro_batch=2", "embedding.passes=cached")
    first, (loss, _) = first_step(job)
    expected = flat_gradient(job, first)
    plan = job.plan.with_value("held_passes", 2, why="the test")
    object.__setattr__(job, "plan", plan)
    again, (other, _) = first_step(job)
    assert (other, distance(flat_gradient(job, again), expected)) == (loss, 0.0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "case"), [("token-mean", "gen/mixed"), ("sample-sum", "gen/token")])
def test_both_generative_losses_are_the_references(tmp_path: Path, kind: str, case: str, engine: str) -> None:
    settings = (f"engine={engine}", f"train.generative_loss={kind}", "embedding.weight=1e-30")
    loop, (_, _, loss, _) = first_step(reference_job(tmp_path, *settings, objective="gritlm"))
    wanted = recorded()[case]
    assert relative([loss, norm(loop)], [wanted["loss_gen"], wanted["grad_norm"]]) < BOUND


@pytest.mark.parametrize("engine", ENGINES)
def test_five_joint_steps_are_the_references(tmp_path: Path, engine: str) -> None:
    _, events = trained(reference_job(tmp_path, f"engine={engine}", objective="gritlm"))
    lines = [event for event in events if isinstance(event, StepResult)]
    steps = next(each for name, each in recorded().items() if name.startswith("5 AdamW steps"))
    for line, wanted in zip(lines, steps, strict=True):
        found = [line.parts["embedding_loss"], line.parts["generative_loss"], line.grad_norm]
        assert relative(found, [wanted["loss_emb"], wanted["loss_gen"], wanted["grad_norm"]]) < BOUND
        assert abs(line.loss - wanted["loss_emb"] - wanted["loss_gen"]) < BOUND * line.loss
