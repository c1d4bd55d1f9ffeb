"""ZeRO-2 and ZeRO-3 with DeepSpeed itself: two and three processes (gloo on the CPU) beside one without it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from training.backends.zero.conftest import ALL_CUT, DROPOUT, SLOW, STEPS, Group, Start

from loradock.training.checkpoint.store import visible

pytestmark = pytest.mark.full
OFFLOADED = {
    "zero_optimization": {
        "stage3_param_persistence_threshold": 0,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
    }
}


STOPPED_IN_EVALUATION = """
import os, signal
from loradock.training.loop import Loop
real = Loop.evaluate
def evaluate(self, *rest, **more):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(self, *rest, **more)
Loop.evaluate = evaluate
"""


def assert_same(group: Group, alone: Group) -> None:
    """But for the order of additions."""
    assert len(group.losses()) == STEPS
    assert group.losses() == pytest.approx(alone.losses(), rel=1e-5)
    mine, other = load(group.adapter()), load(alone.adapter())
    assert mine.keys() == other.keys()
    assert all(torch.allclose(mine[name], other[name], atol=1e-5) for name in mine)


@pytest.mark.thin(6)
@pytest.mark.parametrize("stage", [2, 3])
def test_bfloat16_trains_by_deepspeeds_own_autocast(stage: int, tmp_path: Path, start: Start, alone: Group) -> None:
    """Two autocasts around one another were refused by it; losses are those of float32 but for its rounding."""
    group = start(tmp_path, "model.compute_dtype=bfloat16", stage=stage)
    assert group.finish() == [0, 0], group.text()
    assert group.losses() == pytest.approx(alone.losses(), rel=2e-2)
    assert group.losses() != pytest.approx(alone.losses(), rel=1e-6), "it did compute in bfloat16"


@pytest.mark.thin(6)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("stage", [2, 3])
def test_processes_train_what_one_does_and_each_holds_its_share(
    stage: int, count: int, tmp_path: Path, start: Start, alone: Group
) -> None:
    """Three processes have not the same number of micro-batches, and weights that no three parts are equal of."""
    group = start(tmp_path, stage=stage, count=count)
    assert group.finish() == [0] * count, group.text()
    assert_same(group, alone)
    share = group.share()
    assert share["stage"] == stage
    assert share["processes"] == count
    assert share["local_trained"] == pytest.approx(share["trained"] / count, rel=0.02)
    assert share["local_weights"] == pytest.approx(share["weights"] / (count if stage == 3 else 1), rel=0.02)
    own_seconds = group.lines("train")[-1]["rank_seconds"]
    assert own_seconds is None if stage == 3 else len(own_seconds) == count, "ZeRO-3 waits in the forward pass"


@pytest.mark.thin(6)
@pytest.mark.parametrize(("stage", "own"), [(2, ALL_CUT), (3, ALL_CUT), (3, OFFLOADED)])
def test_a_run_that_a_signal_ended_continues_to_the_same_bits(
    stage: int, own: Any, tmp_path: Path, start: Start, undisturbed: Callable[..., Group]
) -> None:
    first = start(tmp_path, DROPOUT, stage=stage, own=own, code=SLOW)
    first.reach(2)
    for each in first.processes:
        each.send_signal(signal.SIGTERM)
    assert first.finish() == [75, 75], first.text()
    step, _ = visible(first.folder / "out" / "checkpoints")[0]
    assert step % 4, "it was committed because of the signal"
    again = start(tmp_path, DROPOUT, stage=stage, own=own)
    assert again.finish() == [0, 0], again.text()
    assert f"continuing from checkpoint-{step}" in again.text()
    assert again.adapter() == undisturbed(stage, own).adapter()


@pytest.mark.thin(6)
def test_a_run_goes_on_without_deepspeed_on_another_number_of_processes(
    tmp_path: Path, start: Start, alone: Group
) -> None:
    first = start(tmp_path, stage=3, code=SLOW)
    first.reach(3)
    for each in first.processes:
        each.send_signal(signal.SIGTERM)
    assert first.finish() == [75, 75], first.text()
    again = start(tmp_path, count=1, allowed=["engine", "train.parallel", "train.deepspeed", "world_size", "plan"])
    assert again.finish() == [0], again.text()
    assert "continuing from checkpoint-" in again.text()
    assert_same(again, alone)


@pytest.mark.thin(6)
def test_packed_documents_are_shown_not_to_see_one_another_once_the_weights_are_cut(
    tmp_path: Path, start: Start, alone: Group
) -> None:
    """And a base that is read part by part is evaluated as a whole one."""
    group = start(tmp_path, "train.packing=true", "data.validation=8", "evaluation.every=3", stage=3)
    assert group.finish() == [0, 0], group.text()
    assert "packing check: passed" in group.text()
    assert "evaluation" in group.text()


@pytest.mark.thin(6)
@pytest.mark.parametrize("every", [3, STEPS])
def test_an_evaluation_that_a_signal_cut_off_is_held_once_the_weights_are_there(
    every: int, tmp_path: Path, start: Start
) -> None:
    settings = ("data.validation=8", f"evaluation.every={every}")
    first = start(tmp_path, *settings, stage=3, code=STOPPED_IN_EVALUATION)
    assert first.finish() == [75, 75], first.text()
    again = start(tmp_path, *settings, stage=3)
    assert again.finish() == [0, 0], again.text()
    assert f"continuing from checkpoint-{every}" in again.text()
    assert again.steps("eval") == list(range(every, STEPS + 1, every))
    assert again.steps("train") == list(range(1, STEPS + 1))
