"""Faults under ZeRO-2 and ZeRO-3: each ends all processes by its name and its exit code, and nothing false is kept."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from training.backends.zero.conftest import ALL_CUT, DROPOUT, SLOW, STEPS, Group, Start

from loradock.errors import Diverged, EnvironmentUnfit, Hung, NoCheckpoint
from loradock.training.checkpoint.store import visible

pytestmark = pytest.mark.full
PEER_SECONDS, SLACK_SECONDS = 15.0, 45.0
"""Silence; and a report, the naming and the record, on a machine that others use."""
# DeepSpeed passes over what it was told.
UNTOLD = """
from loradock.training.backends.zero import sharding
real = sharding.started
def started(model, optimizer, settings):
    return real(model, optimizer, {**settings, "zero_optimization": {"stage": 0}})
sharding.started = started
"""
UNCUT = """
import torch
from loradock.training.backends.zero import sharding
real = sharding.flats
sharding.flats = lambda optimizer: [torch.cat(real(optimizer))] * 2
"""
SPOILT = """
import torch
from loradock.training.backends.zero import weights
real = weights.gathered
weights.gathered = lambda part, shape: real(part, shape=shape).to(torch.int16)
"""
SLOWEST_AT_FIVE = SLOW.replace("0.5", "5 if step == 5 else 0.1")
INFINITE = """
import torch
from loradock.training.backends.zero.backend import ZeroBackend
real = ZeroBackend.backward
class Spoilt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()
    @staticmethod
    def backward(ctx, gradient):
        return gradient * float("inf")
def backward(self, loss, *, at):
    real(self, Spoilt.apply(loss) if at.step == 4 and self.job.rank == 1 else loss, at=at)
ZeroBackend.backward = backward
"""
# A finite gradient whose loss is not: DeepSpeed itself would step with it.
NO_LOSS = """
from loradock.training.backends.zero.backend import ZeroBackend
real = ZeroBackend.forward_backward
def forward_backward(self, batch, *, scale, at):
    return real(self, batch, scale=scale, at=at) * (float("nan") if at.step == 4 else 1)
ZeroBackend.forward_backward = forward_backward
"""
# Whether this process's weights are what the last whole step left, where the guard refuses the next.
WATCHED = """
import json, os
from pathlib import Path
import torch
from loradock.training import guards
from loradock.training.backends.zero import sharding
real_update, real_check, seen = ZeroBackend.update, guards.check_step, []
def weights(zero):
    return [flat.detach().clone() for flat in sharding.flats(zero)]
def update(self):
    real_update(self)
    seen[:] = [self.engine.optimizer, weights(self.engine.optimizer)]
def check_step(*rest, **more):
    try:
        real_check(*rest, **more)
    except Exception:
        zero, left = seen
        is_same = all(map(torch.equal, weights(zero), left))
        Path(f"untouched-{os.environ['RANK']}.json").write_text(json.dumps(is_same))
        raise
ZeroBackend.update, guards.check_step = update, check_step
"""


REPLACED = [
    (2, UNTOLD, "DeepSpeed's engine came out with ZeRO-0"),
    (2, UNCUT, "the optimiser's state is not cut: ZeRO-2 over 2 processes"),
    (3, SPOILT, "weights in [0-9,]+ bytes, and NF4 takes half a byte each"),
]


@pytest.mark.thin(6)
@pytest.mark.parametrize(("stage", "code", "what"), REPLACED)
def test_a_mode_that_was_silently_replaced_is_an_error_that_names_it(
    stage: int, code: str, what: str, tmp_path: Path, start: Start
) -> None:
    group = start(tmp_path, stage=stage, code=code)
    assert group.finish() == [EnvironmentUnfit.exit_code] * 2, group.text()
    assert re.search(f"train.parallel zero{stage} was silently replaced: .*{what}", group.text())
    assert f"step 1/{STEPS}" not in group.text()


@pytest.mark.thin(6)
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("code", "what"), [(INFINITE, "the gradient norm is inf"), (NO_LOSS, "the loss is nan")])
def test_a_gradient_or_a_loss_that_is_not_finite_ends_all_processes_and_no_weight_has_moved(
    code: str, what: str, stage: int, tmp_path: Path, start: Start
) -> None:
    group = start(tmp_path, stage=stage, code=code + WATCHED)
    assert group.finish() == [Diverged.exit_code] * 2, group.text()
    assert f"training diverged at step 5: {what}" in group.text()
    assert [json.loads((tmp_path / f"untouched-{rank}.json").read_text()) for rank in (0, 1)] == [True, True]
    assert [step for step, _ in visible(group.folder / "out" / "checkpoints")] == [4]
    assert len(group.losses()) == 4


def test_a_file_that_contradicts_the_run_ends_every_process_with_its_problems(tmp_path: Path, start: Start) -> None:
    group = start(tmp_path, stage=2, own={"train_batch_size": 99, "optimizer": {"params": {"betas": [0.9, 0.95]}}})
    assert group.finish() == [78, 78]
    assert "train_batch_size is 99, and the run's is 8 (--set train.global_batch=99)" in group.text()
    remedy = "(--set train.betas=[0.9,0.95])"
    assert f"optimizer.params.betas is [0.9, 0.95], and the run's is [0.8, 0.99] {remedy}" in group.text()


def test_a_file_that_changed_is_another_run_and_each_key_is_named(tmp_path: Path, start: Start) -> None:
    first = start(tmp_path, stage=2, code=SLOW)
    first.reach(2)
    first.processes[0].send_signal(signal.SIGTERM)
    assert first.finish() == [75, 75], first.text()
    other = {"zero_optimization": {**ALL_CUT["zero_optimization"], "overlap_comm": True}}
    again = start(tmp_path, stage=2, own=other)
    assert again.finish() == [NoCheckpoint.exit_code] * 2, again.text()
    assert "train.deepspeed.zero_optimization.overlap_comm was absent, now true" in again.text()
    accepted = start(tmp_path, stage=2, own=other, allowed=["train.deepspeed"])
    assert accepted.finish() == [0, 0], accepted.text()


@pytest.mark.thin(6)
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_killed_is_named_in_time_and_the_same_command_continues_to_the_same_bits(
    lost: int, stage: int, tmp_path: Path, start: Start, undisturbed: Callable[..., Group]
) -> None:
    first = start(tmp_path, DROPOUT, f"limits.peer_seconds={PEER_SECONDS}", stage=stage, code=SLOWEST_AT_FIVE)
    first.reach(5)
    first.processes[lost].kill()
    began = time.monotonic()
    codes = first.finish()
    assert time.monotonic() - began < PEER_SECONDS + SLACK_SECONDS
    assert codes[1 - lost] in (EnvironmentUnfit.exit_code, Hung.exit_code), first.text()
    assert re.search(rf"error: .*rank {lost} on {os.uname().nodename}", first.logs[1 - lost].read_text("utf-8"))
    again = start(tmp_path, DROPOUT, stage=stage)
    assert again.finish() == [0, 0], again.text()
    assert "continuing from checkpoint-4" in again.text()
    assert again.adapter() == undisturbed(stage).adapter()
