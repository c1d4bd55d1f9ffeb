"""The pass that is made before the first step bounds every pass of the run, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import job_of

from loradock.training.backends.fast import rehearsal
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.batch import FlatBatch
from loradock.training.backends.fast.inputs import filled_up, flat_inputs
from loradock.training.job import Job


def size(batch: FlatBatch) -> tuple[int, int, int]:
    """Tokens, supervised positions, tokens of the longest document."""
    bounds = batch.documents.cu_seqlens
    return batch.tokens, len(batch.rows), int(bounds.diff().max())


@pytest.mark.parametrize("packing", ["true", "false"])
def test_no_micro_batch_of_the_run_is_larger(packing: str, tmp_path: Path, llama: Path, rows: Path) -> None:
    settings = ("data.max_length=200", f"train.packing={packing}", "train.micro_batch=4")
    job = job_of(tmp_path, "engine=fast", *settings, model=llama, data=rows, max_length=200)
    most = size(rehearsal.largest(build(job)[0], job))
    seen = [size(each) for each in batches(job)]
    assert all(one <= other for sizes in seen for one, other in zip(sizes, most, strict=True))
    assert most[2] == max(longest for _, _, longest in seen), "documents as long as the data has them"
    assert most[0] == 4 * (job.plan.data.limit_tokens if packing == "true" else most[2]), "and as many as the budget"


def batches(job: Job) -> list[FlatBatch]:
    return [
        flat_inputs(micro_batch, **filled_up(job))[0]
        for index in range(len(job.steps))
        for micro_batch in job.steps[index].micro_batches
    ]


def test_a_pass_with_dropout_leaves_the_weights_and_the_random_state(tmp_path: Path, llama: Path, rows: Path) -> None:
    job = job_of(tmp_path, "engine=fast", "train.micro_batch=4", "lora.dropout=0.2", model=llama, data=rows)
    model = build(job)[0]
    before, state = model.adapters.values.clone(), torch.get_rng_state()
    model.adapters.gradient.fill_(1.0)
    rehearsal.rehearse(model, job)
    assert torch.equal(model.adapters.values, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.adapters.gradient, torch.ones_like(before)), "its own share is scaled by nothing"


def test_a_difference_is_a_share_only_where_it_is_more_than_the_noise_of_small_tensors() -> None:
    tiny = {"base weights": 40 << 20, "activations": 13 << 20, "runtime": 700 << 20, "total": 753 << 20}
    assert "%" not in rehearsal.compared(91 << 20, tiny).why, "71 % of the plan, and nothing to fear"
    large = {"base weights": 4 << 30, "activations": 6 << 30, "fragmentation": 1 << 30, "total": 11 << 30}
    assert "(+5%)" in rehearsal.compared(int(10.5 * 2**30), large).why
    assert "(-5%)" in rehearsal.compared(int(9.5 * 2**30), large).why
