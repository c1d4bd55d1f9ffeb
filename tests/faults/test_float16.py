"""P8 where float16 trains: the loss is scaled, and a step with an infinite gradient is how the scale is found.

The fast engine's own loop over a float16 working copy of the tiny model; float16 is planned for cards only, but it
computes on a CPU, too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import jobs
import pytest
import torch
from bitsandbytes.nn import Linear4bit
from faults.seams import SEAMS
from jobs import job_of
from safetensors.torch import load_file

from loradock.errors import Diverged
from loradock.training.checkpoint.manifest import open_checkpoint
from loradock.training.checkpoint.store import visible
from loradock.training.events import StepResult
from loradock.training.job import Job

RUN = ("engine=fast", "train.max_steps=5", "train.micro_batch=2", "checkpoints.every=1", "lora.dropout=0.1")


def in_float16(directory: Path, *settings: str, model: Path, data: Path) -> Job:
    """A job of the fast engine as for a card without bfloat16; no plan for a CPU is one."""
    job = job_of(directory, *RUN, *settings, model=model, data=data)
    job.checkpoints.keep = 9
    for module in job.model.modules():
        if isinstance(module, Linear4bit):
            module.compute_dtype = torch.float16
    return replace(job, plan=job.plan.with_value("compute_dtype", "float16", why="the test"))


def trained(job: Job) -> list[float]:
    """The losses of a run of the job."""
    _, events = jobs.trained(job)
    return [event.loss for event in events if isinstance(event, StepResult)]


def scales(job: Job) -> dict[int, float]:
    """The loss scale after each committed step."""
    found = {step: path / "training_state.pt" for step, path in visible(job.checkpoints.folder)}
    return {step: torch.load(file, weights_only=True)["scaler"]["scale"] for step, file in sorted(found.items())}


def weights(job: Job, step: int) -> dict[str, torch.Tensor]:
    return load_file(job.checkpoints.folder / f"checkpoint-{step}" / "adapter_model.safetensors")


@pytest.fixture
def infinite_at(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The steps in which one element of a gradient is infinite."""
    steps: set[int] = set()

    def gradient(value: torch.Tensor, step: int) -> torch.Tensor:
        changed = value.clone()
        changed.view(-1)[0] = math.inf
        return changed if step in steps else value

    SEAMS["fast"].gradient(gradient, patch=monkeypatch.setattr)
    return steps


@pytest.mark.thin(3)
def test_a_step_whose_gradient_is_infinite_is_left_out_and_halves_the_scale_and_both_are_continued_to_the_same_bits(
    tmp_path: Path, llama: Path, rows: Path, infinite_at: set[int]
) -> None:
    infinite_at.add(3)
    job = in_float16(tmp_path / "whole", model=llama, data=rows)
    losses = trained(job)
    assert len(losses) == 5
    assert scales(job) == {1: 65536.0, 2: 65536.0, 3: 32768.0, 4: 32768.0, 5: 32768.0}
    second, third, fourth = (weights(job, step) for step in (2, 3, 4))
    assert all(torch.equal(second[name], third[name]) for name in second)
    assert not all(torch.equal(third[name], fourth[name]) for name in third)
    again = in_float16(tmp_path / "again", model=llama, data=rows)
    assert trained(replace(again, resume=open_checkpoint(job.checkpoints.folder / "checkpoint-3"))) == losses[3:]
    assert scales(again) == {4: 32768.0, 5: 32768.0}
    assert all(torch.equal(weights(again, 5)[name], weights(job, 5)[name]) for name in second)


@pytest.mark.thin(3)
def test_a_gradient_that_stays_infinite_ends_the_run_when_the_scale_is_down_to_one(
    tmp_path: Path, llama: Path, rows: Path, infinite_at: set[int]
) -> None:
    infinite_at.update(range(1, 21))
    job = in_float16(tmp_path, "train.max_steps=20", "checkpoints.every=20", model=llama, data=rows)
    with pytest.raises(Diverged, match="at step 17: the gradient norm is"):
        trained(job)
    assert not visible(job.checkpoints.folder)
