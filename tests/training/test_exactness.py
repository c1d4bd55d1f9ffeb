"""Reruns, resumes and evaluations change nothing, by either engine: on a CPU, to the bit.

A run that the other engine continues starts from the same bits, and goes on with the same losses but for the order of
additions.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults.seams import SEAMS
from safetensors.torch import load_file
from tiny import copy_tree
from whole_runs import adapter_bytes, losses, train

from loradock.model import adapters
from loradock.training.checkpoint.state import RandomState
from loradock.training.checkpoint.store import visible
from loradock.training.run import Result

RUN = (
    "train.max_steps=12",
    "train.global_batch=8",
    "train.micro_batch=2",
    "train.packing=true",
    "train.workers=0",
    "data.max_length=64",
    "lora.rank=4",
    "checkpoints.every=5",
    "checkpoints.keep=9",
)
NOISY = "lora.dropout=0.1"
# float32 on a CPU: sums in another order, over twelve steps.
LOSS_RELATIVE, WEIGHT_ABSOLUTE = 1e-5, 1e-5
FAST_IN_CI = pytest.mark.parametrize("engine", ["fast", pytest.param("peft", marks=pytest.mark.full)])

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> Run:
    """A run of twelve steps that nobody disturbs, with these settings; made once."""
    place, made = tmp_path_factory.mktemp("whole"), dict[tuple[str, ...], Result]()

    def run(*settings: str) -> Result:
        if settings not in made:
            made[settings] = train(place / str(len(made)), *RUN, *settings, model=llama, data=rows)
        return made[settings]

    return run


@pytest.fixture
def continued(tmp_path: Path, llama: Path, rows: Path) -> Run:
    """A copy of a run whose checkpoints after step 5 are gone, as the command with these settings continues it."""

    def run(before: Result, *settings: str, allowed: tuple[str, ...] = ()) -> Result:
        copy = copy_tree(before.directory, tmp_path / "copy")
        for step in (10, 12):
            shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}")
        shutil.rmtree(copy / "adapter")
        assert [step for step, _ in visible(copy / "checkpoints")] == [5]
        again = train(copy, *RUN, *settings, model=llama, data=rows, allowed=allowed)
        assert again.record["resumed_from"] == "checkpoint-5"
        return again

    return run


def assert_same(one: Result, other: Result) -> None:
    assert losses(one) == losses(other)
    assert adapter_bytes(one) == adapter_bytes(other)


@FAST_IN_CI
def test_a_rerun_is_bit_exact_also_where_workers_load_the_steps(
    engine: str, whole: Run, tmp_path: Path, llama: Path, rows: Path
) -> None:
    settings = (*RUN, f"engine={engine}", NOISY, "train.workers=2")
    assert_same(train(tmp_path / "again", *settings, model=llama, data=rows), whole(f"engine={engine}", NOISY))


@FAST_IN_CI
def test_another_seed_gives_another_adapter(engine: str, whole: Run) -> None:
    first = whole(f"engine={engine}", NOISY)
    assert adapter_bytes(whole(f"engine={engine}", NOISY, "train.seed=1")) != adapter_bytes(first)


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_resume_in_the_middle_of_an_epoch_is_bit_exact_with_dropout_packing_and_accumulation(
    engine: str, whole: Run, continued: Run
) -> None:
    settings = (f"engine={engine}", NOISY)
    assert_same(continued(whole(*settings), *settings), whole(*settings))


@FAST_IN_CI
def test_an_evaluation_between_the_steps_changes_nothing(engine: str, tmp_path: Path, llama: Path, rows: Path) -> None:
    settings = (*RUN, f"engine={engine}", NOISY, "data.validation=8")
    without = train(tmp_path / "a", *settings, "evaluation.every=12", model=llama, data=rows)
    between = train(tmp_path / "b", *settings, "evaluation.every=3", model=llama, data=rows)
    assert len(between.evaluations) == 4
    assert_same(without, between)


@FAST_IN_CI
def test_adapters_and_optimiser_state_are_float32_fresh_and_resumed_and_bfloat16_resumes_to_the_same_bits(
    engine: str, whole: Run, continued: Run
) -> None:
    settings = (f"engine={engine}", NOISY, "model.compute_dtype=bfloat16")
    fresh = whole(*settings)
    found = fresh.record["dtypes"]
    assert (found["adapters"], found["optimiser state"], found["compute"]) == ("float32", "float32", "bfloat16")
    assert found["base"] == "nf4 in uint8"
    resumed = continued(fresh, *settings)
    assert resumed.record["dtypes"] == found
    assert_same(resumed, fresh)
    exported = load_file(resumed.adapter / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}


@pytest.mark.parametrize("engine", ["peft", pytest.param("fast", marks=pytest.mark.full)])
def test_fresh_adapters_keep_the_bits_of_their_initialisation(
    engine: str, tmp_path: Path, llama: Path, rows: Path
) -> None:
    """TRL rounds them to bfloat16 while it is made; a float32 copy of that would have lost bits."""
    settings = (f"engine={engine}", "train.max_steps=1", "train.learning_rate=1e-30", "lora.rank=4")
    exported = load_file(
        train(tmp_path / "run", *settings, model=llama, data=rows).adapter / "adapter_model.safetensors"
    )
    weights = torch.cat([tensor.flatten() for name, tensor in exported.items() if "lora_A" in name])
    assert not torch.equal(weights, weights.to(torch.bfloat16).float())


def begun_with(loop: Any) -> dict[str, Any]:
    """Adapter, moments and random state of a loop."""
    moments = loop.backend.optimizer.state_dict()["state"]
    return {
        "adapter": {name: tensor.detach().clone() for name, tensor in adapters.state(loop.job.model).items()},
        "moments": {index: {name: each.clone() for name, each in state.items()} for index, state in moments.items()},
        "random": RandomState.now().torch,
    }


def differences(begun: dict[str, Any], checkpoint: Path) -> list[str]:
    """What a loop began with that is not, bit by bit, what the checkpoint holds."""
    state = torch.load(io.BytesIO((checkpoint / "training_state.pt").read_bytes()), weights_only=True)
    adapter, moments = load_file(checkpoint / "adapter_model.safetensors"), state["optimizer"]["state"]
    found = [name for name in adapter if not torch.equal(adapter[name], begun["adapter"][name])]
    for index, values in moments.items():
        each = begun["moments"][index]
        found += [f"{name} of {index}" for name in values if not torch.equal(values[name], each[name])]
    same_keys = (adapter.keys(), moments.keys()) == (begun["adapter"].keys(), begun["moments"].keys())
    same_random = torch.equal(state["random"][0]["torch"], begun["random"])
    return found + ["keys"] * (not same_keys) + ["random"] * (not same_random)


@pytest.mark.parametrize(("first", "second"), [("peft", "fast"), ("fast", "peft")])
def test_a_run_that_the_other_engine_continues_begins_with_the_same_bits_and_has_the_same_losses(
    first: str, second: str, whole: Run, continued: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []

    def made(loop: Any, _: Any, make: Any) -> Any:
        if not begun:
            begun.append(begun_with(loop))
        return make()

    before, other = whole(f"engine={first}"), whole(f"engine={second}")
    SEAMS[second].step(made, patch=monkeypatch.setattr)
    both = continued(before, f"engine={second}", allowed=("engine", "plan.engine"))
    assert differences(begun[0], both.directory / "checkpoints" / "checkpoint-5") == []
    assert losses(both)[:5] == losses(before)[:5]
    assert losses(both) == pytest.approx(losses(before), rel=LOSS_RELATIVE)
    assert losses(both) == pytest.approx(losses(other), rel=LOSS_RELATIVE)
    one, two = (load_file(each.adapter / "adapter_model.safetensors") for each in (both, before))
    assert all(torch.allclose(one[name], two[name], atol=WEIGHT_ABSOLUTE) for name in one)
