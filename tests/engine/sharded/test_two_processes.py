"""Two processes (gloo on the CPU) that share one model by FSDP2 train what one process trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import SHARDED, STEPS, Start, adapter, losses


def test_two_processes_that_share_a_model_train_what_one_does(tmp_path: Path, start: Start) -> None:
    group = start(tmp_path / "2", *SHARDED)
    assert group.finish() == [0, 0], group.text()
    group = start(tmp_path / "1", "engine=fast", count=1)
    assert group.finish() == [0], group.text()
    assert len(losses(tmp_path / "1")) == STEPS
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-5)
    one, two = adapter(tmp_path / "1"), adapter(tmp_path / "2")
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
