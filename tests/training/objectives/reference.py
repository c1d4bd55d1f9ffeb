"""The reference's recorded values (GritLM's own code on a tiny Llama), and jobs that compute the same."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import job_of, loop_of

from loradock.model.adapters import trainable
from loradock.plan.knobs.held_passes import ALL
from loradock.training.batches import StepItems
from loradock.training.job import Job
from loradock.training.loop import Loop

SHARED = Path(__file__).parents[4] / "shared" / "data" / "gritlm"
MODEL = SHARED / "reference" / "tiny_llama"
NEEDS_REFERENCE = pytest.mark.skipif(not MODEL.is_dir(), reason="shared data absent: the reference's model and values")
ROWS = 8
LINEARS = "[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]"
SETTINGS = (
    *("model.quantization=none", "lora.rank=4", "lora.alpha=8", f"lora.targets={LINEARS}", "train.max_steps=5"),
    *("embedding.global_batch=8", "embedding.passage_length=256", "train.workers=0", "train.global_batch=8"),
    *("data.template=gritlm", "data.long_rows=truncate", "train.max_grad_norm=0", "train.learning_rate=0.001"),
    *("train.schedule=constant", "train.warmup=0", "logging.every=1"),
)
CASES = {
    "mean/bbcc/g2": ("mean", "bidirectional", 2),
    "mean/bbcc/g8": ("mean", "bidirectional", 8),
    "mean/cccc/g2": ("mean", "causal", 2),
    "weightedmean/bbcc/g2": ("weightedmean", "bidirectional", 2),
    "lasttoken/bbcc/g2": ("lasttoken", "bidirectional", 2),
    "cls/bbcc/g2": ("cls", "bidirectional", 2),
}
"""Pooling, attention and group size of each recorded case of the contrastive loss."""
GENERATIVE = {"gen/mixed": "token-mean", "gen/token": "sample-sum"}
"""`train.generative_loss` of each recorded case of the other one."""
Budget = tuple[int, int | str]
"""Documents (or rows) of a micro-batch, and how many passes stay."""
BUDGETS: tuple[Budget, ...] = ((24, ALL), (3, 0), (2, 2), (1, 0))


def settings_of(case: str, *, engine: str) -> tuple[str, ...]:
    """What a case of the contrastive loss asks for; its group is `CASES[case][2]`."""
    pooling, attention, _ = CASES[case]
    return f"engine={engine}", f"embedding.pooling={pooling}", f"embedding.attention={attention}"


def recorded() -> dict[str, Any]:
    """The values by case."""
    return json.loads((SHARED / "reference" / "values.json").read_text("utf-8"))


def pairs_file(file: Path, *, negatives: int) -> Path:
    """The first toy rows, each with its first positive and so many of its first negatives."""
    lines = (SHARED / "toy_data_embedding.jsonl").read_text("utf-8").splitlines()[:ROWS]
    rows = [json.loads(line) for line in lines]
    cut = [{**row, "pos": row["pos"][:1], "neg": row["neg"][:negatives]} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in cut), "utf-8")
    return file


def rows_file(file: Path) -> Path:
    """The first toy rows to answer from."""
    lines = (SHARED / "toy_data_generative.jsonl").read_text("utf-8").splitlines(keepends=True)[:ROWS]
    file.write_text("".join(lines), "utf-8")
    return file


def reference_job(folder: Path, *settings: str, objective: str = "embedding", group: int = 2) -> Job:
    """A job over the toy rows with the reference's model and adapter values."""
    data = [pairs_file(folder / "pairs.jsonl", negatives=group - 1)] if objective != "supervised" else []
    data += [rows_file(folder / "rows.jsonl")] if objective != "embedding" else []
    asked = (*SETTINGS, f"objective={objective}", f"embedding.negatives={group - 1}", *settings)
    job = job_of(folder, *asked, model=MODEL, data=data, max_length=512)
    set_values(job.model)
    return job


def reshaped(job: Job, budget: Budget) -> Job:
    """The same job in micro-batches of another size, of which so many passes stay."""
    micro_batch, held = budget
    plan = job.plan.with_value("held_passes", held, why="the test")
    return replace(job, plan=plan, steps=job.steps.reshaped(micro_batch))


def set_values(model: Any) -> None:
    """Value j of the i-th tensor by name: 0.02 sin(0.1 j + i)."""
    named = sorted((name, each) for name, each in model.named_parameters() if each.requires_grad)
    with torch.no_grad():
        for place, (_, each) in enumerate(named):
            values = 0.02 * torch.sin(0.1 * torch.arange(each.numel(), dtype=torch.float64) + place)
            each.copy_(values.float().view_as(each))


def first_step(job: Job, **more: Any) -> tuple[Loop, list[float]]:
    """A loop after the passes of the first step: its backend holds the gradients; the loss and its parts."""
    loop = loop_of(job, **more)
    job.model.train()
    inputs = StepItems(job.steps, loop.backend.tensors)[0]
    loop.backend.begin_step()
    found = job.objective.step(loop.backend, inputs, step=0, poll=lambda: None)
    loop.backend.reduce_gradients()
    return loop, found.tolist()


def joint_steps() -> list[dict[str, float]]:
    """The recorded joint steps."""
    return next(each for name, each in recorded().items() if name.startswith("5 AdamW steps"))


def norm(loop: Loop) -> float:
    """Of the whole gradient."""
    return float(loop.backend.clip())


def flat_gradient(job: Job, loop: Loop) -> torch.Tensor:
    """The adapters' gradients in a row, by name."""
    adapters = getattr(getattr(loop.backend, "model", None), "adapters", None)
    if adapters is None:
        return torch.cat([each.grad.flatten() for each in trainable(job.model) if each.grad is not None])
    return torch.cat([adapters.view(adapters.gradient, [each], [-1]) for each in trainable(job.model)]).clone()


def relative(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / max(1e-12, abs(b)) for a, b in zip(found, expected, strict=True))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of two gradients, as a share of the expected one's norm."""
    return float((found - expected).norm()) / max(1e-12, math.sqrt(float(expected.pow(2).sum())))
