"""LoRA+: B learns at a rate of its own, as PEFT's optimiser has it, on both engines, and goes on bit by bit."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import recorded
from jobs import job_of
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from tiny import copy_tree
from whole_runs import losses, train

from loradock.catalog.engines import MODES
from loradock.catalog.optimizers import DEFAULT
from loradock.config.sections.train import TrainConfig
from loradock.errors import NoCheckpoint
from loradock.model import optimizer
from loradock.model.adapters import trainable
from loradock.plan import obstacles
from loradock.training.backends.fast.adapters import FlatAdapters
from loradock.training.backends.fast.optimizer import FlatAdamW
from loradock.training.run import Result

pytestmark = pytest.mark.thin(4)

RUN = ("train.max_steps=4", "train.global_batch=4", "lora.rank=4", "data.max_length=64", "train.workers=0")
CADENCE = ("checkpoints.every=2", "train.weight_decay=0.1", "train.learning_rate=1e-3")
RATIO = "train.loraplus_lr_ratio=16"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path) -> dict[str, Result]:
    place = tmp_path_factory.mktemp("runs")
    settings = {"fast": ("engine=fast", RATIO), "peft": ("engine=peft", RATIO), "plain": ("engine=fast",)}
    return {name: train(place / name, *RUN, *CADENCE, *more, model=llama, data=rows) for name, more in settings.items()}


def adapter(run: Result) -> dict[str, torch.Tensor]:
    return load_file(run.adapter / "adapter_model.safetensors")


def test_twenty_steps_are_those_of_pefts_own_optimiser_bit_by_bit(tmp_path: Path, llama: Path, rows: Path) -> None:
    ours: Any = job_of(tmp_path, "lora.rank=4", "lora.modules_to_save=[lm_head]", model=llama, data=rows).model
    theirs = deepcopy(ours)
    settings = TrainConfig(loraplus_lr_ratio=16, learning_rate=1e-3, weight_decay=0.1)
    arguments = {"betas": settings.betas, "eps": settings.eps, "fused": True, "loraplus_weight_decay": 0.1}
    steppers = (
        optimizer.of_run(ours, DEFAULT.name, settings),
        create_loraplus_optimizer(theirs, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16, **arguments),
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        for mine, other in zip(trainable(ours), trainable(theirs), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for each in steppers:
            each.step()
    assert all(map(torch.equal, trainable(ours), trainable(theirs)))
    rates = {group["lr"] for group in steppers[0].param_groups if group["params"]}
    assert rates == {1e-3, 16e-3}


def test_both_engines_step_alike_by_it_and_otherwise_than_without(runs: dict[str, Result]) -> None:
    assert losses(runs["fast"]) == pytest.approx(losses(runs["peft"]), rel=1e-4)
    fast, peft, plain = (adapter(runs[name]) for name in runs)
    assert all(torch.allclose(fast[name], peft[name], atol=1e-4) for name in fast)
    moved = {kind: max(float(fast[name].abs().max()) for name in fast if kind in name) for kind in ("lora_B",)}
    assert moved["lora_B"] > 8 * max(float(plain[name].abs().max()) for name in plain if "lora_B" in name)


@pytest.mark.parametrize(("began", "goes_on"), [("fast", "fast"), ("peft", "peft"), ("fast", "peft"), ("peft", "fast")])
def test_a_run_goes_on_as_if_nothing_had_been(
    began: str, goes_on: str, runs: dict[str, Result], tmp_path: Path, llama: Path, rows: Path
) -> None:
    run = copy_tree(runs[began].directory, tmp_path / "run")
    for gone in (run / "checkpoints" / "checkpoint-4", run / "adapter"):
        shutil.rmtree(gone)
    allowed = () if began == goes_on else ("plan.engine", "engine", "plan.packing", "plan.optimizer")
    after = train(run, *RUN, *CADENCE, f"engine={goes_on}", RATIO, model=llama, data=rows, allowed=allowed)
    expected, found = adapter(runs[began]), adapter(after)
    tolerance = 0.0 if began == goes_on else 1e-4
    assert all(torch.allclose(found[name], expected[name], rtol=0, atol=tolerance) for name in expected)


@pytest.mark.parametrize("engine", ["fast", "peft"])
def test_a_run_that_began_without_it_is_refused_even_where_the_change_is_allowed(
    engine: str, runs: dict[str, Result], tmp_path: Path, llama: Path, rows: Path
) -> None:
    run = copy_tree(runs["plain"].directory, tmp_path / "run")
    for gone in (run / "checkpoints" / "checkpoint-4", run / "adapter"):
        shutil.rmtree(gone)
    allowed = ("train.loraplus_lr_ratio", "engine", "plan.engine", "plan.packing", "plan.optimizer")
    with pytest.raises(NoCheckpoint, match="group"):
        train(run, *RUN, *CADENCE, f"engine={engine}", RATIO, model=llama, data=rows, allowed=allowed)


@pytest.mark.parametrize("mode", ["fsdp", "zero2", "zero3"])
def test_a_sharded_run_is_refused_by_its_name(mode: str) -> None:
    asked, model = recorded.config(train={"loraplus_lr_ratio": 16}), recorded.models()["mistral-7b"]
    why = obstacles.first(MODES[mode].cannot, asked, model, compute_dtype="bfloat16")
    assert why == "its optimiser has one learning rate, and train.loraplus_lr_ratio is 16"


def test_a_flat_optimiser_of_several_runs_steps_as_one_over_parameters() -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(16, 8)) for _ in range(6)]
    single = [torch.nn.Parameter(each.detach().clone()) for each in parameters]
    adapters = FlatAdapters(parameters, dtype=torch.float32)
    groups = [[parameters[at] for at in (0, 1, 3)], [parameters[at] for at in (5, 2, 4)]]
    flat = FlatAdamW(adapters, groups, lr_ratios=(1.0, 4.0), lr=1e-2)
    mirrored = [[single[at] for at in (0, 1, 3)], [single[at] for at in (5, 2, 4)]]
    settings = [{"params": mirrored[0], "lr": 1e-2}, {"params": mirrored[1], "lr": 4e-2}]
    plain = torch.optim.AdamW(settings, fused=True)
    for attempt in range(4):
        for each in single:
            each.grad = torch.randn(16, 8)
        adapters.gradient.copy_(torch.cat([each.grad.flatten() for each in single]))  # pyright: ignore[reportOptionalMemberAccess]
        flat.step()
        plain.step()
        if attempt == 1:
            flat.load_state_dict(deepcopy(flat.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(parameters, single, strict=True))
    state, expected = flat.state_dict()["state"], plain.state_dict()["state"]
    assert all(torch.equal(state[at][name], expected[at][name]) for at in expected for name in expected[at])
    with pytest.raises(ValueError, match="the state has 2 groups"):
        flat.load_state_dict({"state": {}, "param_groups": [{}, {}]})
