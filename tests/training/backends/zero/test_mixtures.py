"""Mixtures whose experts are in NF4, with adapters on the experts, under ZeRO-2 and ZeRO-3."""

from __future__ import annotations

from pathlib import Path

import mixtures
import pytest
import torch
from safetensors.torch import load
from training.backends.zero.conftest import Start

EXPERTS = ("lora.targets=[all-linear,experts]", "lora.dropout=0", "lora.init=gaussian", "model.compute_dtype=float32")


@pytest.mark.full
@pytest.mark.parametrize("stage", [2, 3])
def test_they_train_what_one_process_trains(stage: int, tmp_path: Path, start: Start) -> None:
    model = mixtures.make(tmp_path / "model", "qwen3_moe")
    single = start(tmp_path / "single", *EXPERTS, model=model, count=1)
    assert single.finish() == [0], single.text()
    pair = start(tmp_path / "pair", *EXPERTS, model=model, stage=stage)
    assert pair.finish() == [0, 0], pair.text()
    assert pair.losses() == pytest.approx(single.losses(), rel=1e-5)
    one, two = load(single.adapter()), load(pair.adapter())
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
    if stage == 3:
        share = pair.share()
        assert share["local_weights"] == pytest.approx(share["weights"] / 2, rel=0.01)
