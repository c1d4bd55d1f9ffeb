"""What one of several processes does that compute the recorded cases together; rank 0 writes what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from jobs import trained
from torch import distributed

from loradock.machine import Host, probe
from loradock.training.events import StepResult
from loradock.training.job import Job
from objectives.reference import CASES, GENERATIVE, first_step, flat_gradient, norm, reference_job, settings_of

SPLIT = ("embedding.passes=cached", "train.micro_batch=3")


def main(folder: Path, engine: str) -> None:
    """By the launcher's environment; `folder` is the same one for all ranks."""
    facts = probe.gather(Host())
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=facts.rank, world_size=facts.world_size)
    own = folder / f"rank-{facts.rank}"
    own.mkdir()
    found = computed(own, engine)
    if facts.rank == 0:
        (folder / "found.json").write_text(json.dumps(found), "utf-8")
    distributed.destroy_process_group()


def computed(folder: Path, engine: str) -> dict[str, Any]:
    """Loss and gradient norm by case, those of the joint steps, and whether passes that run twice change a bit."""
    cases: dict[str, Any] = {}
    for case, (*_, group) in CASES.items():
        job = reference_job(folder, *SPLIT, *settings_of(case, engine=engine), group=group)
        assert job.steps[0].embedded  # a part for each rank
        cases[case] = loss_and_norm(job, part=0)
    for case, kind in GENERATIVE.items():
        settings = (*SPLIT, f"engine={engine}", f"train.generative_loss={kind}", "embedding.weight=1e-30")
        job = reference_job(folder, *settings, objective="gritlm")
        cases[case] = loss_and_norm(job, part=2)
    _, events = trained(reference_job(folder, *SPLIT, f"engine={engine}", objective="gritlm"))
    lines = [event for event in events if isinstance(event, StepResult)]
    steps = [[each.parts["embedding_loss"], each.parts["generative_loss"], each.grad_norm] for each in lines]
    return {"cases": cases, "steps": steps, "same bits": has_same_bits(folder, engine)}


def loss_and_norm(job: Job, *, part: int) -> list[float]:
    """That part of the loss of a first step, over all ranks, and the norm of its gradient."""
    loop, found = first_step(job)
    whole = torch.tensor(found, dtype=torch.float64)
    distributed.all_reduce(whole)
    return [float(whole[part]), norm(loop)]


def has_same_bits(folder: Path, engine: str) -> bool:
    """Whether `cached` gives the gradient of `direct`, with dropout."""
    gradients = []
    for passes in ("direct", "cached"):
        asked = (f"engine={engine}", "train.micro_batch=2", "lora.dropout=0.1", f"embedding.passes={passes}")
        job = reference_job(folder, *asked)
        torch.manual_seed(3 + job.rank)
        loop, _ = first_step(job)
        gradients.append(flat_gradient(job, loop))
    return torch.equal(*gradients)
