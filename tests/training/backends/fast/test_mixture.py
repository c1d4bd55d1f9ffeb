"""A mixture of experts in the fast engine: what is wrong in it is refused before a run, and files are PEFT's own.

That loss and gradients are those of a float64 twin is in tests/training/test_mixtures.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mixtures
import pytest
import torch
from jobs import job_of
from safetensors.torch import load_file
from whole_runs import losses, train

from loradock.training.backends.fast import self_check
from loradock.training.backends.fast.backend import build
from loradock.training.backends.fast.model import FastModel
from loradock.training.job import Job, Unsound

EXPERTS = "lora.targets=[all-linear,experts]"
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixtures.make(tmp_path_factory.mktemp("mixture") / "qwen3_moe", "qwen3_moe")


@pytest.fixture(params=DTYPES)
def job(request: pytest.FixtureRequest, tmp_path: Path, mixture: Path, rows: Path) -> Job:
    settings = ("engine=fast", EXPERTS, f"model.compute_dtype={request.param}")
    return job_of(tmp_path, *settings, model=mixture, data=rows)


@pytest.mark.parametrize("kind", mixtures.FAST)
@pytest.mark.parametrize("quantization", ["nf4", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_passes_and_the_peft_model_is_left_as_it_was(
    kind: str, quantization: str, dtype: str, tmp_path: Path, rows: Path
) -> None:
    settings = (f"model.quantization={quantization}", f"model.compute_dtype={dtype}", EXPERTS, "engine=fast")
    job = job_of(tmp_path, *settings, model=mixtures.make(tmp_path / "model", kind), data=rows)
    before = {name: each.dtype for name, each in job.model.named_parameters()}
    found = self_check.check(build(job)[0], job)
    assert found.exact.adapter < 1e-4
    assert (found.rounded is None) == (dtype == "float32")
    assert {name: each.dtype for name, each in job.model.named_parameters()} == before
    assert all("forward" not in vars(module) for module in job.model.modules())


def test_a_dense_layer_among_them_and_weights_that_do_not_add_up_to_one_are_computed(
    tmp_path: Path, rows: Path
) -> None:
    shape = {"mlp_only_layers": [0], "num_hidden_layers": 3, "norm_topk_prob": False, "attention_bias": True}
    base = mixtures.make(tmp_path / "model", "qwen3_moe", **shape)
    job = job_of(tmp_path, "engine=fast", EXPERTS, "lora.dropout=0", model=base, data=rows)
    model = build(job)[0]
    assert [len(layer.mlp.linears()) for layer in model.layers] == [2, 0, 0]
    assert self_check.check(model, job).exact.adapter < 1e-4


def scaled(model: FastModel) -> None:
    """An adapter on experts is off by one per cent."""
    wrong: Any = model.layers[1].mlp.frozen()[1]
    wrong.scale *= 1.01


def shifted(model: FastModel) -> None:
    """Each expert is multiplied with the matrix of the next."""
    weight: Any = model.layers[1].mlp.frozen()[1]
    weight.weight.packed = [*weight.weight.packed[1:], weight.weight.packed[0]]


def without_router_gradient(model: FastModel) -> None:
    """The hidden states get no gradient through the routing weights."""
    mlp: Any = model.layers[1].mlp
    mlp.router.backward_ = lambda dx, *_: dx


def not_normalised(model: FastModel) -> None:
    """The weights of a token do not add up to one."""
    mlp: Any = model.layers[1].mlp
    mlp.router.is_normalised = False


def another_router(model: FastModel) -> None:
    """It chooses others, in a layer of which the choice is taken from PEFT."""
    mlp: Any = model.layers[1].mlp
    choice = mlp.router.balance.choice
    mlp.router.balance.choice = lambda experts, layer: choice((experts + 1) % 8, layer=layer)


def unbalanced(model: FastModel) -> None:
    """The balancing loss is counted twice."""
    whole = model.balance.loss
    model.balance.loss = lambda weight: whole(2 * weight)


@pytest.mark.parametrize(
    "fault", [scaled, shifted, without_router_gradient, not_normalised, another_router, unbalanced]
)
def test_what_is_wrong_is_refused(fault: Callable[[FastModel], None], job: Job) -> None:
    if fault is unbalanced:
        job.model.config.router_aux_loss_coef = 1.0  # so that it weighs as much as the likelihood
    model, _ = build(job)
    self_check.check(model, job)
    fault(model)
    with pytest.raises(Unsound, match="does not compute what PEFT computes"):
        self_check.check(model, job)


def test_twenty_steps_write_the_tensors_of_the_peft_engine(tmp_path: Path, mixture: Path, rows: Path) -> None:
    settings = ["train.max_steps=20", "train.global_batch=4", "train.micro_batch=2", "lora.rank=4", "logging.every=1"]
    settings += ["train.learning_rate=1e-3", "lora.init=gaussian", "data.max_length=64", EXPERTS]
    runs = [
        train(tmp_path / engine, *settings, f"engine={engine}", model=mixture, data=rows) for engine in ("fast", "peft")
    ]
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=2e-4)
    first, second = (load_file(run.adapter / "adapter_model.safetensors") for run in runs)
    assert any(".experts." in name for name in first)
    assert first.keys() == second.keys()
    for name, tensor in first.items():  # AdamW moves an expert that has next to no gradient as far as any other
        assert (tensor - second[name]).norm() < 1e-2 * tensor.norm(), name


def test_an_expert_without_a_token_keeps_its_adapter_still(job: Job) -> None:
    """Also where it had one in the micro-batch before."""
    model, _ = build(job)
    rows = self_check.first_rows(job)
    kind = self_check.Likelihood()
    kind.computed(model, rows)
    one = [row[:3] for row in rows[:1]]
    kind.computed(model, one)
    a: Any = model.layers[0].mlp.frozen()[0]
    moved = {int(each) for each in a.adapters.fresh_a.flatten(1).any(dim=1).nonzero()}
    moved_b = {int(each) for each in a.adapters.fresh_b.flatten(0, 1).any(dim=0).nonzero()}
    assert 1 < len(moved) <= 6
    assert moved_b <= moved
    assert not torch.isnan(a.adapters.fresh_a).any()
