"""Checkpoints beside the steps of a GPU: the copy in page-locked memory, and the run that is saved by it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakegpu.commands import Gpus

from loradock.training.checkpoint.snapshot import Snapshot, on_host

FIXED = ("train.max_steps=4", "lora.dropout=0.1")


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


@pytest.mark.thin(4)
@pytest.mark.fakegpu(real=True)
def test_a_copy_of_a_gpus_tensors_is_page_locked_and_holds_their_bits() -> None:
    flat = torch.randn(1000, device="cuda")
    content = {"m": [flat[:300].view(3, 100), flat[300:]], "step": torch.tensor(2.0), "lr": 0.1}
    snapshot = Snapshot()
    assert snapshot.missing_bytes(content) == 4096 + 4
    first = snapshot.take(content)
    assert all(buffer.is_pinned() == (buffer.nbytes == 4000) for buffer in snapshot.buffers)
    assert (snapshot.taken_bytes, snapshot.missing_bytes(content)) == (4096 + 4, 0)
    before = [tensor.cpu().clone() for tensor in content["m"]]
    flat.zero_()
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(first["m"], before, strict=True))
    places = [buffer.data_ptr() for buffer in snapshot.buffers]
    assert saved(snapshot.take(content)) == saved(on_host(content))
    assert [buffer.data_ptr() for buffer in snapshot.buffers] == places


@pytest.mark.thin(4)
def test_a_gpus_run_saved_at_every_step_is_the_one_saved_at_its_end(
    gpu: Gpus, tmp_path: Path, llama: Path, rows: Path
) -> None:
    once, often = (
        gpu.train(tmp_path / str(every), *FIXED, f"checkpoints.every={every}", model=llama, data=rows)
        for every in (4, 1)
    )
    assert often.adapter == once.adapter
    assert often.losses == once.losses
    decided = {decision["name"]: decision["value"] for decision in often.record["engine"]}
    assert decided["saving"] == "beside the steps"
    lines = [json.loads(line) for line in (often.output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "checkpoint"] == [1, 2, 3, 4]
