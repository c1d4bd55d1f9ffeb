"""How tokens spread over experts: counted as a router's own logits say, of each row by itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from jobs import job_of, loop_of

from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.expert_load import metrics, real_slots
from loradock.training.job import Job
from loradock.training.passes import MicroStep

IGNORED = -100


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixtures.make(tmp_path_factory.mktemp("mixture") / "qwen3_moe", "qwen3_moe")


def counted(job: Job) -> list[list[int]]:
    """Pairs by layer and expert of the first step's passes, as they train; evaluations and other passes between."""
    backend: Any = loop_of(job).backend
    batches = [backend.tensors(batch)[0] for batch in job.steps[0].micro_batches]
    for index, batch in enumerate(batches):
        backend.forward_backward(batch, scale=1.0, at=MicroStep(step=0, index=index, count=len(batches)))
        backend.loss_sum(batch)
        backend.score(batch, at=None, keeps=False)
        is_flat = isinstance(batch, FlatBatch)
        idle = replace(batch, weights=torch.zeros_like(batch.weights)) if is_flat else job.objective.idle(batch)
        backend.forward_backward(idle, scale=0.0, at=MicroStep(step=0, index=0, count=1))
    return [each.tolist() for each in backend.expert_load.counts]


def chosen(job: Job) -> list[list[int]]:
    """The same by the logits of the routers, row by row, without padding."""
    job.model.eval()
    counts = torch.zeros(2, 8, dtype=torch.int64)
    for batch in job.steps[0].micro_batches:
        for ids, _ in batch.samples():
            row = torch.from_numpy(ids.astype("int64"))[None]
            for layer, logits in enumerate(job.model(input_ids=row, output_router_logits=True).router_logits):
                counts[layer] += torch.bincount(logits.topk(2).indices.flatten(), minlength=8)
    return counts.tolist()


@pytest.mark.thin(4)
@pytest.mark.parametrize("how", ["padded", "packed", "recomputed", "fast", "fast and recomputed"])
def test_each_token_is_counted_once_with_its_experts(how: str, mixture: Path, rows: Path, tmp_path: Path) -> None:
    settings = (
        f"engine={'fast' if 'fast' in how else 'peft'}",
        f"train.micro_batch={4 if how == 'padded' else 2}",
        f"train.packing={str(how not in ('padded', 'recomputed')).lower()}",
        f"train.checkpointing={str('recomputed' in how).lower()}",
        "model.compute_dtype=float32",
    )
    job = job_of(tmp_path, *settings, model=mixture, data=rows)
    expected = chosen(job)
    assert counted(job) == expected
    assert sum(expected[0]) == 2 * job.steps[0].tokens


@pytest.mark.thin(4)
def test_experts_beside_an_mlp_are_counted_once_where_their_layer_is_recomputed(rows: Path, tmp_path: Path) -> None:
    base = mixtures.make(tmp_path / "base", "gemma4_text", num_experts=8)
    settings = ("engine=fast", "train.micro_batch=2", "train.checkpointing=true")
    job = job_of(tmp_path, *settings, model=base, data=rows)
    assert job.plan.checkpointed_layers.value == 2
    assert counted(job) == chosen(job)


def test_slots_without_a_document_that_is_learned_from_are_none() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2]])
    labels = torch.tensor([[IGNORED, 7, IGNORED, IGNORED, 8, IGNORED, IGNORED, IGNORED]])
    packed = {"input_ids": positions, "position_ids": positions, "labels": labels}
    assert real_slots(packed).tolist() == [True] * 5 + [False] * 3
    padded = {
        "input_ids": torch.zeros(2, 3),
        "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "labels": torch.tensor([[IGNORED, 5, IGNORED], [IGNORED] * 3]),
    }
    assert real_slots(padded).tolist() == [True, True, False, False, False, False]


def test_an_even_load_has_all_its_entropy_and_one_expert_alone_none() -> None:
    assert metrics([]) == {}
    assert metrics([[5, 5, 5, 5]])["expert_entropy"] == pytest.approx(1.0)
    alone = metrics([[8, 0, 0, 0], [4, 4, 0, 0]])
    assert alone == {"expert_entropy": pytest.approx(0.25), "unused_expert_share": 5 / 8, "tokens_per_expert": 2.0}
    assert math.isclose(metrics([[3, 1]])["expert_entropy"], 0.8112781244591328)
