"""The hyperparameters of AdamW: of each engine's step, in its checkpoints, a named difference of a continued run."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import copy_tree
from whole_runs import losses, train

from loradock.errors import NoCheckpoint
from loradock.training.run import Result

pytestmark = pytest.mark.thin(2)

RUN = ("train.max_steps=4", "train.global_batch=4", "lora.rank=4", "data.max_length=64", "train.workers=0")
OTHER = ("train.betas=[0.5,0.9]", "train.eps=1e-3")


def groups(run: Path, step: int = 4) -> list[dict[str, Any]]:
    """The optimiser's settings, by group, as a checkpoint holds them."""
    file = run / "checkpoints" / f"checkpoint-{step}" / "training_state.pt"
    return torch.load(io.BytesIO(file.read_bytes()), weights_only=True)["optimizer"]["param_groups"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> dict[str, Result]:
    """Four steps by either engine with hyperparameters of one's own, and with those of before the keys."""
    place = tmp_path_factory.mktemp("runs")
    settings = {"fast": ("engine=fast", *OTHER), "peft": ("engine=peft", *OTHER), "default": ("engine=fast",)}
    every = "checkpoints.every=2"
    return {name: train(place / name, *RUN, every, *more, model=llama, data=rows) for name, more in settings.items()}


def test_both_engines_step_alike_by_them_and_otherwise_than_by_the_defaults(runs: dict[str, Result]) -> None:
    assert losses(runs["fast"]) == pytest.approx(losses(runs["peft"]), rel=1e-5)
    fast, peft, default = (load_file(runs[name].adapter / "adapter_model.safetensors") for name in runs)
    assert all(torch.allclose(fast[name], peft[name], atol=1e-5) for name in fast)
    moved = max(float((fast[name] - default[name]).abs().max()) for name in fast)
    assert moved > 1e-4, "what a step of 2e-4 would show"


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_checkpoint_and_the_record_hold_them(engine: str, runs: dict[str, Result]) -> None:
    assert {(tuple(group["betas"]), group["eps"]) for group in groups(runs[engine].directory)} == {((0.5, 0.9), 1e-3)}
    asked = runs[engine].record["config"]["train"]
    assert (asked["betas"], asked["eps"]) == ([0.5, 0.9], 1e-3)


def test_a_change_of_them_is_refused_by_name_and_trains_where_it_is_allowed(
    runs: dict[str, Result], tmp_path: Path, llama: Path, rows: Path
) -> None:
    run = copy_tree(runs["default"].directory, tmp_path / "run")
    for gone in (run / "checkpoints" / "checkpoint-4", run / "adapter"):
        shutil.rmtree(gone)
    settings = (*RUN, "checkpoints.every=2", "engine=fast", *OTHER)
    with pytest.raises(NoCheckpoint) as caught:
        train(run, *settings, model=llama, data=rows)
    assert [problem.what for problem in caught.value.problems] == [
        "train.betas was [0.9, 0.999], now [0.5, 0.9]",
        "train.eps was 1e-08, now 0.001",
    ]
    assert "--allow-change train.betas --allow-change train.eps" in (caught.value.hint or "")
    allowed = ("train.betas", "train.eps")
    changes = train(run, *settings, model=llama, data=rows, allowed=allowed).record["allowed_changes"]
    assert changes["train.betas"] == {"was": "[0.9, 0.999]", "now": "[0.5, 0.9]"}
    assert [(tuple(group["betas"]), group["eps"]) for group in groups(run)] == [((0.5, 0.9), 1e-3)] * 2
