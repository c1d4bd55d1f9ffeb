"""Two processes (gloo on the CPU) that share one model by FSDP2: what they train, a signal to one, a continuation."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from faults.forking import Forking
from faults.pairs import begun
from proven import unchecked
from safetensors.torch import load
from training.backends.fsdp.conftest import STEPS, Group, Start

from loradock.errors import ConfigError, EnvironmentUnfit

ADAMW = ("train.betas=[0.8,0.99]", "train.eps=1e-6")
SHARDED = ("train.parallel=fsdp", "train.packing=true", "train.checkpointing=2", *ADAMW)
RESUMED = ("train.parallel=fsdp", "lora.dropout=0.1", "data.validation=0")
# Slow enough for a signal to come in between; the order of all that is computed stays what it is.
SLOW = """
import time
from loradock.training.cadence import Flow
real = Flow.after
def after(self, step):
    time.sleep(0.3)
    return real(self, step)
Flow.after = after
"""
# As a library that cannot shard here does it.
REPLACED = """
from loradock.training.backends.fsdp import sharding
sharding.fully_shard = lambda module, **_: module
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, start: Start, untied: Path) -> Group:
    group = start(tmp_path_factory.mktemp("pair"), *SHARDED, model=untied)
    assert group.finish() == [0, 0], group.text()
    return group


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, start: Start, untied: Path) -> Group:
    """The same global batch in one process, by an engine that shares no code with the sharded one."""
    group = start(tmp_path_factory.mktemp("single"), "engine=fast", *ADAMW, model=untied, count=1)
    assert group.finish() == [0], group.text()
    return group


def test_they_train_what_one_process_trains(pair: Group, single: Group) -> None:
    assert len(single.losses()) == STEPS
    assert pair.losses() == pytest.approx(single.losses(), rel=1e-5)
    assert pair.losses("eval") == pytest.approx(single.losses("eval"), rel=1e-5)
    one, two = single.adapter(), pair.adapter()
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-5) for name in one)


def test_their_checkpoint_is_one_adapter_and_one_state_as_of_a_single_process(pair: Group, single: Group) -> None:
    one, two = (load((each.checkpoint() / "adapter_model.safetensors").read_bytes()) for each in (single, pair))
    assert {name: tensor.shape for name, tensor in one.items()} == {name: tensor.shape for name, tensor in two.items()}
    assert all(torch.equal(tensor, two[name]) for name, tensor in pair.adapter().items())
    first, second = single.training_state()["optimizer"], pair.training_state()["optimizer"]
    assert first["state"].keys() == second["state"].keys()
    for group in (*first["param_groups"], *second["param_groups"]):
        assert (tuple(group["betas"]), group["eps"]) == ((0.8, 0.99), 1e-6)
    assert [group["params"] for group in first["param_groups"]] == [group["params"] for group in second["param_groups"]]
    for index, entry in first["state"].items():
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(second["state"][index][name], entry[name], rtol=1e-3, atol=1e-7)
        assert float(entry["step"]) == float(second["state"][index]["step"]) == STEPS


def test_each_holds_its_part_and_the_record_says_so(pair: Group) -> None:
    """Half, but for rows that do not divide (LoRA's three), and the scales."""
    record = pair.record()
    decided = {each["name"]: each["value"] for each in record["plan"]["decisions"]}
    assert (decided["parallel"], decided["engine"], decided["cpu_offload"]) == ("fsdp", "fsdp", False)
    assert decided["checkpointed_layers"] == 2
    share = next(each for each in record["engine"] if each["name"] == "share of the model")
    assert 0.5 <= share["value"] < 0.51, share
    assert record["dtypes"]["base"] == "nf4 in float32"


def test_a_signal_to_one_ends_both_with_a_checkpoint_and_the_same_command_continues_to_the_same_bits(
    tmp_path: Path, start: Start, llama: Path
) -> None:
    whole = start(tmp_path / "whole", *RESUMED, model=llama)
    assert whole.finish() == [0, 0], whole.text()
    first = start(tmp_path / "cut", *RESUMED, model=llama, code=SLOW)
    assert first.reached(3), first.text()
    first.ranks[1].send(signal.SIGTERM)
    assert first.finish() == [75, 75], first.text()
    step = int(first.checkpoint().name.removeprefix("checkpoint-"))
    assert 3 <= step < STEPS
    again = start(tmp_path / "cut", *RESUMED, model=llama)
    assert again.finish() == [0, 0], again.text()
    assert f"continuing from checkpoint-{step}" in again.text()
    assert again.losses() == whole.losses()
    one, two = whole.adapter(), again.adapter()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_model_that_did_not_come_out_sharded_ends_the_run_before_the_first_step(
    tmp_path: Path, start: Start, llama: Path
) -> None:
    group = start(tmp_path, "train.parallel=fsdp", model=llama, code=REPLACED)
    assert group.finish() == [EnvironmentUnfit.exit_code] * 2, group.text()
    assert "fsdp was decided on, and the model did not come out sharded: 2 of 2 decoder layers" in group.text()
    assert "step 1/" not in group.text()


def test_the_demo_is_refused_before_its_base_model_is_loaded(tmp_path: Path, forking: Forking) -> None:
    """Its exam would want the whole model in a process."""
    asked = ("--set", "train.parallel=fsdp", "--set", "device=cpu")
    pair = begun(forking, tmp_path, ["train", "--demo", unchecked("two processes"), "--output", "out", *asked])
    assert pair.finish() == [ConfigError.exit_code] * 2, pair.text()
    assert "error: the demo is examined before and after training, and under train.parallel fsdp no rank" in (
        pair.text()
    )
    assert "base model" not in pair.text()


def test_one_process_that_is_to_share_its_model_is_refused_before_anything_is_looked_at(
    tmp_path: Path, start: Start, llama: Path
) -> None:
    group = start(tmp_path, "train.parallel=fsdp", model=llama, count=1)
    assert group.finish() == [EnvironmentUnfit.exit_code], group.text()
    assert "error: train.parallel fsdp shards the model over several ranks, and there is one process" in group.text()
    assert "environment" not in group.text()
