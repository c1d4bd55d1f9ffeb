"""Preferences under ZeRO-2 and ZeRO-3: the same losses as of one process, also where an adapter is the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from training.backends.zero.conftest import Group, Start

pytestmark = pytest.mark.full
LEARNING = ("train.max_steps=5", "train.global_batch=5", "data.validation=5")


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    """Pairs, of five of which one rank has three and the other two."""
    file = tmp_path / "pairs.jsonl"
    lines = [
        {"prompt": f"{number} stones", "chosen": "lamp stone", "rejected": "cat " * (1 + number % 7)}
        for number in range(24)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


def check_equal(two: Group, one: Group) -> None:
    assert one.finish() == [0], one.text()
    assert two.finish() == [0, 0], two.text()
    assert two.losses() == pytest.approx(one.losses(), rel=1e-4)
    for name in ("loss", "preference_accuracy", "reward_margin"):
        (single,), (double,) = ([line[name] for line in group.lines("eval")[-1:]] for group in (one, two))
        assert double == pytest.approx(single, rel=1e-4, abs=1e-5)
    mine, other = load(two.adapter()), load(one.adapter())
    assert all(torch.allclose(mine[name], tensor, rtol=1e-2, atol=1e-4) for name, tensor in other.items())


@pytest.mark.thin(6)
@pytest.mark.parametrize("stage", [2, 3])
def test_pairs_are_held_against_the_adapter_that_the_run_began_with(
    stage: int, tmp_path: Path, start: Start, alone: Group, answers: Path
) -> None:
    settings = (*LEARNING, "objective=preference", f"lora.adapter={alone.folder / 'out' / 'adapter'}")
    one = start(tmp_path / "one", *settings, count=1, data=answers)
    two = start(tmp_path / "two", *settings, stage=stage, data=answers)
    check_equal(two, one)
    assert one.losses()[0] == pytest.approx(0.6931, abs=1e-4), "nothing is gained before the first step"


@pytest.mark.thin(6)
@pytest.mark.parametrize("stage", [2, 3])
def test_a_reward_model_is_that_of_one_process(stage: int, tmp_path: Path, start: Start, answers: Path) -> None:
    one = start(tmp_path / "one", *LEARNING, "objective=reward", count=1, data=answers)
    two = start(tmp_path / "two", *LEARNING, "objective=reward", stage=stage, data=answers)
    check_equal(two, one)
    assert "base_model.model.score.weight" in load(two.adapter())
