"""float16 with loss scaling, as cards without bfloat16 train: here on the CPU, which would not choose it by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch
from jobs import job_of

from loradock.errors import Diverged
from loradock.training.backends.fast.engine import build
from loradock.training.backends.fast.trainer import FastTrainer
from loradock.training.batches import step_loader
from loradock.training.job import Job
from loradock.training.saving import Saver


def trainer_of(folder: Path, dtype: str, *, model: Path, data: Path) -> FastTrainer:
    settings = ("engine=fast", "train.micro_batch=2", "train.learning_rate=1e-3", "train.schedule=constant")
    job: Job = job_of(folder, *settings, model=model, data=data)
    job = replace(job, plan=job.plan.with_value("compute_dtype", dtype, why="a test"))
    fast, _ = build(job)
    return FastTrainer(job, lambda _: None, Saver(job, lambda _: None), model=fast)


def losses_of(trainer: FastTrainer, *, steps: int) -> list[float]:
    found, inputs = [], cycle(step_loader(trainer.job, trainer.as_tensors))
    for _ in range(steps):
        before = trainer.losses.clone()
        trainer.make_step(next(inputs))
        found.append(float(trainer.losses - before))
    return found


def test_scaled_losses_are_those_of_float32(tmp_path: Path, llama: Path, rows: Path) -> None:
    exact = trainer_of(tmp_path / "a", "float32", model=llama, data=rows)
    half = trainer_of(tmp_path / "b", "float16", model=llama, data=rows)
    assert half.scaler is not None
    expected, found = losses_of(exact, steps=6), losses_of(half, steps=6)
    assert found == pytest.approx(expected, rel=1e-2)
    assert float(half.grad_norm) == pytest.approx(float(exact.grad_norm), rel=5e-2)


def test_a_scale_that_overflows_is_halved_and_its_step_left_out(tmp_path: Path, llama: Path, rows: Path) -> None:
    trainer = trainer_of(tmp_path, "float16", model=llama, data=rows)
    assert trainer.scaler is not None
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    values = trainer.model.adapters.values.clone()
    losses_of(trainer, steps=1)
    assert trainer.scaler.get_scale() == 2.0**39
    assert torch.equal(trainer.model.adapters.values, values)
    losses_of(trainer, steps=40)
    assert trainer.scaler.get_scale() < 2.0**30
    assert not torch.equal(trainer.model.adapters.values, values)
    assert trainer.model.adapters.values.isfinite().all()


def test_a_gradient_that_stays_infinite_at_the_lowest_scale_ends_the_run(
    tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(tmp_path, "float16", model=llama, data=rows)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    real = trainer.model.loss_and_gradients

    def overflowing(*arguments: object, **more: object) -> torch.Tensor:
        loss = real(*arguments, **more)  # pyright: ignore[reportArgumentType]
        trainer.model.adapters.gradient[5] = float("inf")
        return loss

    monkeypatch.setattr(trainer.model, "loss_and_gradients", overflowing)
    with pytest.raises(Diverged, match="gradient norm"):
        losses_of(trainer, steps=1)
