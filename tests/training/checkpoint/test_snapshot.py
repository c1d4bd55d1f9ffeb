"""The copy of a run's state that a checkpoint is written from, and the file that is written of it without one more."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from loradock.files import atomic_io
from loradock.training.checkpoint import safetensors_stream
from loradock.training.checkpoint.snapshot import Snapshot, storages


def content() -> dict[str, Any]:
    """A state as optimisers have it: views of one vector, tensors that share memory, counts, nothing, plain values."""
    flat = torch.randn(100)
    return {
        "flat": {0: {"step": torch.tensor(3.0), "m": flat[:40].view(4, 10)}, 1: {"m": flat[40:].view(6, 10)}},
        "groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1]}],
        "turned": torch.randn(3, 5).t(),
        "odd": torch.tensor([float("nan"), -0.0, float("inf")]),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "empty": (torch.empty(0, 3), None),
    }


def saved(state: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def test_a_copy_is_saved_as_the_same_bytes_and_keeps_them_when_the_state_moves_on() -> None:
    state, snapshot = content(), Snapshot()
    before, copy = saved(state), snapshot.take(state)
    assert saved(copy) == before
    with torch.no_grad():
        for entry in state["flat"].values():
            entry["m"].add_(1)
            entry["new"] = 1
        state["odd"].zero_()
        state["groups"][0]["lr"] = 2.0
        state["groups"][0]["params"].append(2)
    assert saved(copy) == before
    assert len(storages(copy)) == len(storages(state))


def test_the_next_copy_is_taken_into_the_same_memory() -> None:
    snapshot = Snapshot()
    first = snapshot.take(content())
    places = [buffer.data_ptr() for buffer in snapshot.buffers]
    assert snapshot.missing_bytes(content()) == 0
    second = snapshot.take(content())
    assert [buffer.data_ptr() for buffer in snapshot.buffers] == places
    assert torch.equal(first["bytes"], second["bytes"])


def test_what_a_copy_takes_is_known_before_it_is_taken() -> None:
    snapshot, state = Snapshot(), {"weight": torch.zeros(1000), "tied": torch.zeros(5)}
    state["tied"] = state["weight"][:5]
    assert snapshot.missing_bytes(state) == 4000
    snapshot.take(state)
    assert (snapshot.missing_bytes(state), snapshot.taken_bytes) == (0, 4000)
    assert snapshot.missing_bytes({**state, "more": torch.zeros(10)}) == 40


@pytest.mark.parametrize("dtype", safetensors_stream.DTYPES, ids=str)
def test_tensors_are_written_as_safetensors_itself_writes_them(dtype: torch.dtype, tmp_path: Path) -> None:
    weight = torch.randn(4, 5).to(dtype)
    tensors = {
        "b.weight": weight,
        "a.weight": torch.randn(3),
        "tied": weight,
        "turned": weight.t(),
        'odd "name" é': torch.arange(3),
        "scalar": torch.tensor(2.0),
        "empty": torch.empty(0, 4, dtype=dtype),
    }
    atomic_io.write(tmp_path / "file", lambda sink: safetensors_stream.write(tensors, sink))
    alone = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    assert (tmp_path / "file").read_bytes() == save(alone, metadata={"format": "pt"})
