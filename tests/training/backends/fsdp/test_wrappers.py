"""Two processes share the language model of a base that also sees: they train what one process trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.backends.fsdp.conftest import STEPS, Start
from wrappers import make_wrapper


@pytest.mark.thin(4)
@pytest.mark.parametrize("kind", ["gemma3", "mistral3"])
def test_they_train_what_one_process_trains(tmp_path: Path, start: Start, kind: str) -> None:
    base = make_wrapper(tmp_path / "base", kind)
    single = start(tmp_path / "single", "engine=fast", "lora.dropout=0", model=base, count=1)
    assert single.finish() == [0], single.text()
    pair = start(tmp_path / "pair", "train.parallel=fsdp", "lora.dropout=0", model=base)
    assert pair.finish() == [0, 0], pair.text()
    assert len(single.losses()) == STEPS
    assert pair.losses() == pytest.approx(single.losses(), rel=1e-5)
    assert pair.losses("eval") == pytest.approx(single.losses("eval"), rel=1e-5)
    one, two = single.adapter(), pair.adapter()
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)
