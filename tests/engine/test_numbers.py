"""The loss and the gradients are those of the plain computation: packed, accumulated, evaluated in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import BASE

from loradock import plan as plans
from loradock import probe
from loradock.config.load import Loaded, load
from loradock.data.collate import MicroBatch
from loradock.data.corpus import prepare_corpus
from loradock.engine import isolation
from loradock.engine.base import Job
from loradock.engine.checkpoints import Checkpoints
from loradock.engine.saving import Saver
from loradock.engine.trl_trainer import StepTrainer
from loradock.engine.watchdog import Limits, Watchdog
from loradock.errors import ModelError
from loradock.host import Host
from loradock.model import adapters, shape, source, tokenizer
from loradock.model import load as loading
from loradock.model.generate import answer

# float32 on a CPU: sums of a few thousand terms in another order.
RELATIVE, ABSOLUTE = 2e-4, 2e-6
NO_LIMITS = Limits(setup_seconds=0, step_seconds=0, save_seconds=0)


def job_of(directory: Path, *settings: str, model: Path, data: Path) -> Job:
    """Everything up to the engine, as `run` does it."""
    overrides = ["train.global_batch=8", "lora.rank=4", f"data.cache={directory}", *settings]
    loaded: Loaded = load(None, overrides=overrides, shortcuts={"--model": str(model), "--data": [str(data)]})
    facts = probe.gather(Host())
    base = source.find(loaded.config.model)
    words = tokenizer.open_tokenizer(base)
    found = shape.inspect(base, loaded.config)
    config = loaded.config
    corpus = prepare_corpus(config, tokenizer=words, max_length=64, facts=facts)
    plan = plans.make(config, facts=facts, model=found, data=corpus.facts)
    whole, _ = loading.load(base, config.model, plan=plan, local_rank=0)
    adapted = adapters.attach(whole, config, base=base)
    with torch.no_grad():  # B begins at zero, which would leave A without a gradient
        generator = torch.Generator().manual_seed(7)
        for parameter in adapters.trainable(adapted):
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return Job(
        config=config,
        plan=plan,
        model=adapted,
        tokenizer=words,
        steps=corpus.steps(plan, facts=facts),
        evaluation=corpus.evaluation(plan, facts=facts),
        directory=directory,
        checkpoints=Checkpoints(directory / "checkpoints", run_id="test", fingerprint={}, keep=1),
        resume=None,
        watchdog=Watchdog(NO_LIMITS, heartbeat=None, on_hang=lambda _: None),
        world_size=1,
        rank=0,
    )


def trainer_of(job: Job) -> StepTrainer:
    return StepTrainer(job, lambda _: None, Saver(job, lambda _: None))


def one_step(job: Job) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the run's first optimiser step, by the engine's own training step."""
    trainer = trainer_of(job)
    job.model.zero_grad()
    inputs = next(iter(trainer.get_train_dataloader()))
    loss = trainer.training_step(trainer.model, inputs)
    return float(loss), gradients(trainer.model)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all adapter gradients by name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(
            tensor, second[name], rtol=RELATIVE, atol=ABSOLUTE, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_packed_loss_and_gradients_equal_unpacked_ones(tmp_path: Path, llama: Path, rows: Path) -> None:
    packed = one_step(job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows))
    plain = one_step(job_of(tmp_path, "train.packing=false", "train.micro_batch=4", model=llama, data=rows))
    assert packed[0] == pytest.approx(plain[0], rel=1e-5)
    assert_close(packed[1], plain[1])


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_accumulation_equals_one_batch_with_rows_of_random_length(
    tmp_path: Path, llama: Path, rows: Path, micro_batch: int
) -> None:
    settings = ("train.packing=false", f"train.micro_batch={micro_batch}")
    accumulated = one_step(job_of(tmp_path, *settings, model=llama, data=rows))
    whole = one_step(job_of(tmp_path, "train.packing=false", "train.micro_batch=8", model=llama, data=rows))
    assert accumulated[0] == pytest.approx(whole[0], rel=1e-5)
    assert_close(accumulated[1], whole[1])


def test_the_loss_is_the_mean_over_the_supervised_tokens_of_the_step(tmp_path: Path, llama: Path, rows: Path) -> None:
    """Against a loss written out by hand from the labels, row by row."""
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=2", model=llama, data=rows)
    step = job.steps[0]
    total, count = 0.0, 0
    for batch in step.micro_batches:
        for row, length in zip(batch.rows, batch.lengths, strict=True):
            ids, mask = batch.prepared.row(int(row), length=int(length))
            with torch.no_grad():
                logits = job.model(input_ids=torch.tensor(np.array(ids))[None].long()).logits[0].double()
            logs = logits.log_softmax(-1)
            for position in np.flatnonzero(mask):
                total -= float(logs[position - 1, int(ids[position])])
                count += 1
    assert count == step.supervised_tokens
    assert one_step(job)[0] == pytest.approx(total / count, rel=1e-5)


def test_gradients_are_bit_equal_before_and_after_an_evaluation_and_a_generation(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    job = job_of(tmp_path, "train.micro_batch=4", "data.validation=8", model=llama, data=rows)
    trainer = trainer_of(job)
    inputs = next(iter(trainer.get_train_dataloader()))

    def step() -> dict[str, torch.Tensor]:
        job.model.zero_grad()
        trainer.training_step(trainer.model, inputs)
        return gradients(trainer.model)

    before = step()
    trainer.evaluate()
    answer(trainer.model, job.tokenizer, [[5, 6, 7], [8, 9]], max_new_tokens=4)
    after = step()
    assert all(torch.equal(before[name], after[name]) for name in before)


def two_documents(job: Job) -> tuple[list[int], list[int]]:
    batch: MicroBatch = job.steps[0].micro_batches[0]
    first, second = (batch.prepared.row(int(row))[0].tolist() for row in batch.rows[:2])
    return first, second


def test_packed_documents_do_not_see_one_another(tmp_path: Path, llama: Path, rows: Path) -> None:
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows)
    vocabulary = job.plan.model.vocabulary
    assert isolation.check(job.model, *two_documents(job), dtype="float32", vocabulary=vocabulary) < 1e-6


def test_a_planted_leak_is_refused(tmp_path: Path, llama: Path, rows: Path) -> None:
    """A model that ignores where documents begin, as some attention implementations do."""
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows)

    class Leaking(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
            return self.model(input_ids=input_ids, use_cache=use_cache)

    with pytest.raises(ModelError, match="packing leaks"):
        isolation.check(Leaking(job.model), *two_documents(job), dtype="float32", vocabulary=job.plan.model.vocabulary)


def test_positions_that_run_on_over_documents_are_refused(tmp_path: Path, llama: Path, rows: Path) -> None:
    """Attention apart but positions counted on: nothing moves, yet the loss is not the one the row has alone."""
    job = job_of(tmp_path, "train.packing=true", "train.micro_batch=4", model=llama, data=rows)

    class Shifted(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
            starts = (position_ids == 0).cumsum(-1) > 1
            moved = torch.where(starts, position_ids * 7, position_ids)
            return self.model(input_ids=input_ids, position_ids=moved, use_cache=use_cache)

    with pytest.raises(ModelError, match="packing leaks"):
        isolation.check(Shifted(job.model), *two_documents(job), dtype="float32", vocabulary=job.plan.model.vocabulary)


def rows_of(batches: Sequence[MicroBatch]) -> list[int]:
    return [int(row) for batch in batches for row in batch.rows]


def test_a_step_sees_the_same_rows_packed_or_not(tmp_path: Path, llama: Path, rows: Path) -> None:
    seen = [
        rows_of(job_of(tmp_path, f"train.packing={packing}", model=llama, data=rows).steps[1].micro_batches)
        for packing in ("true", "false")
    ]
    assert seen[0] == seen[1]


def test_the_shipped_base_is_the_one_these_tokenizers_come_from(llama: Path) -> None:
    assert (llama / "tokenizer.json").read_bytes() == (BASE / "tokenizer.json").read_bytes()


def test_the_validation_loss_does_not_depend_on_the_micro_batch(tmp_path: Path, llama: Path, rows: Path) -> None:
    """A mean of batch means would: rows have different numbers of supervised tokens."""
    found = []
    for micro_batch in (1, 5):
        settings = (f"train.micro_batch={micro_batch}", "data.validation=8")
        job = job_of(tmp_path, *settings, model=llama, data=rows)
        found.append(trainer_of(job).evaluate()["eval_loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)
