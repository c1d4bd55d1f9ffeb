"""Flat batches between processes: by value, since a tensor that is shared takes a file descriptor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from jobs import job_of
from torch.utils.data import DataLoader, Dataset

from loradock.training.backends.fast.attention.base import Documents
from loradock.training.backends.fast.batch import FlatBatch, flatten
from loradock.training.batches import only_item

MICRO_BATCHES = 200


def batch_of(start: int) -> FlatBatch:
    ids = torch.arange(start, start + 6)
    bounds = torch.tensor([0, 2, 6], dtype=torch.int32)
    return FlatBatch(
        ids=ids,
        positions=torch.tensor([0, 1, 0, 1, 2, 3], dtype=torch.int32),
        documents=Documents(bounds=(0, 2, 6), cu_seqlens=bounds, longest=4),
        rows=torch.tensor([0, 2]),
        slots=torch.tensor([0, 2]),
        targets=ids[[1, 3]],
        weights=torch.ones(2),
    )


class Steps(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[FlatBatch]:
        return [batch_of(index * 1000 + number) for number in range(MICRO_BATCHES)]


def test_a_step_of_many_micro_batches_comes_from_a_worker_whole_and_takes_no_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    steps = list(DataLoader(Steps(), batch_size=1, collate_fn=only_item, num_workers=1))
    assert len(os.listdir("/proc/self/fd")) < before + 20  # by shared memory: 4 x 200 x 7
    for index, step in enumerate(steps):
        for number, found in enumerate(step):
            expected = batch_of(index * 1000 + number)
            assert found.documents.bounds == expected.documents.bounds
            assert torch.equal(found.documents.cu_seqlens, expected.documents.cu_seqlens)
            assert all(torch.equal(tensor, expected.tensors()[name]) for name, tensor in found.tensors().items())


def test_attention_is_told_the_longest_document_there_but_for_what_is_replayed(
    tmp_path: Path, llama: Path, rows: Path
) -> None:
    job = job_of(tmp_path, "engine=fast", model=llama, data=rows)
    micro_batch = job.steps[0].micro_batches[0]
    longest = int(micro_batch.lengths.max())
    assert longest < 512
    for multiple in (1, 8):
        assert flatten(micro_batch, pad_token_id=0, longest=512, multiple=multiple).documents.longest == longest
    captured = flatten(micro_batch, pad_token_id=0, longest=512, multiple=8, documents_multiple=32)
    assert captured.documents.longest == 512
