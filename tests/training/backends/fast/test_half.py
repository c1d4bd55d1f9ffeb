"""float16 with loss scaling, as cards without bfloat16 train: here on the CPU, which would not choose it by itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch
from jobs import job_of, loop_of

from loradock.errors import Diverged
from loradock.training.backends.fast.backend import FastBackend
from loradock.training.backends.fast.model import FastModel
from loradock.training.batches import step_loader
from loradock.training.job import Job
from loradock.training.loop import Loop

pytestmark = pytest.mark.thin(4)


def half_of(folder: Path, dtype: str, *, model: Path, data: Path) -> Loop:
    settings = ("engine=fast", "train.micro_batch=2", "train.learning_rate=1e-3", "train.schedule=constant")
    job: Job = job_of(folder, *settings, model=model, data=data)
    return loop_of(replace(job, plan=job.plan.with_value("compute_dtype", dtype, why="a test")))


def fast_of(loop: Loop) -> FastModel:
    assert isinstance(loop.backend, FastBackend)
    return loop.backend.model


def losses_of(loop: Loop, *, steps: int) -> list[float]:
    found, inputs = [], cycle(step_loader(loop.job, loop.backend.tensors))
    for _ in range(steps):
        before = loop.losses.clone()
        loop.make_step(next(inputs))
        found.append(float(loop.losses - before))
    return found


def test_scaled_losses_are_those_of_float32(tmp_path: Path, llama: Path, rows: Path) -> None:
    exact = half_of(tmp_path / "a", "float32", model=llama, data=rows)
    half = half_of(tmp_path / "b", "float16", model=llama, data=rows)
    assert half.backend.scaler is not None
    expected, found = losses_of(exact, steps=6), losses_of(half, steps=6)
    assert found == pytest.approx(expected, rel=1e-2)
    assert float(half.grad_norm) == pytest.approx(float(exact.grad_norm), rel=5e-2)


def test_a_scale_that_overflows_is_halved_and_its_step_left_out(tmp_path: Path, llama: Path, rows: Path) -> None:
    loop = half_of(tmp_path, "float16", model=llama, data=rows)
    assert loop.backend.scaler is not None
    loop.backend.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    values = fast_of(loop).adapters.values.clone()
    losses_of(loop, steps=1)
    assert loop.backend.scaler.get_scale() == 2.0**39
    assert torch.equal(fast_of(loop).adapters.values, values)
    losses_of(loop, steps=40)
    assert loop.backend.scaler.get_scale() < 2.0**30
    assert not torch.equal(fast_of(loop).adapters.values, values)
    assert fast_of(loop).adapters.values.isfinite().all()


def test_a_gradient_that_stays_infinite_at_the_lowest_scale_ends_the_run(
    tmp_path: Path, llama: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = half_of(tmp_path, "float16", model=llama, data=rows)
    loop.backend.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    real = fast_of(loop).loss_and_gradients

    def overflowing(*arguments: object, **more: object) -> torch.Tensor:
        loss = real(*arguments, **more)  # pyright: ignore[reportArgumentType]
        fast_of(loop).adapters.gradient[5] = float("inf")
        return loss

    monkeypatch.setattr(fast_of(loop), "loss_and_gradients", overflowing)
    with pytest.raises(Diverged, match="gradient norm"):
        losses_of(loop, steps=1)
