"""The small mixtures of env-check train as in float64; experts that compute wrongly are named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loradock.config.load import load
from loradock.config.sections.model import ModelConfig
from loradock.env_check.base import Intent
from loradock.env_check.compute import experts
from loradock.env_check.compute.places import Device
from loradock.env_check.intent import intent
from loradock.facts import Facts
from loradock.machine import Host
from loradock.model.experts import forward, layout, peft_layers

pytestmark = pytest.mark.thin(2)

CPU = Device(device="cpu", dtype="float32")
FACTS = Facts(platform="", python="", cpus=1, memory_bytes=2**34, in_container=False)
FORWARD: Any = forward.experts_forward
PRODUCT, FACTORS = forward.product, peft_layers.factors


def test_mixtures_train_as_in_float64_where_the_model_is_one(tmp_path: Path) -> None:
    plan = Intent(output=tmp_path, cache=tmp_path, scratch=tmp_path, has_experts=True)
    (message,) = experts.look(Host(), FACTS, plan)
    assert (message.severity, message.what) == (
        "ok",
        "small mixtures with NF4 experts on cpu in float32 train as in float64: qwen3_moe, gpt_oss",
    )
    (none,) = experts.look(Host(), FACTS, replace(plan, has_experts=False))
    assert (none.severity, none.what) == ("ok", "the model has no experts")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_they_do_in_16_bit_and_unquantised(dtype: str) -> None:
    model_config = ModelConfig(quantization="none" if dtype == "float16" else "nf4")
    assert [experts.attempt(kind, model_config, replace(CPU, dtype=dtype)) for kind in experts.LAYOUTS] == ["", ""]


def other_expert(module: Any, key: str, inputs: torch.Tensor, expert: int, **more: Any) -> torch.Tensor:
    return PRODUCT(module, key, inputs, (expert + 1) % experts.EXPERTS, **more)


def without_bias(module: Any, key: str, inputs: torch.Tensor, expert: int, **more: Any) -> torch.Tensor:
    return PRODUCT(module, key, inputs, expert, **more) - (
        getattr(module, f"{key}_bias")[expert] if module.has_bias else 0
    )


def one_expert_a_token(module: Any, states: torch.Tensor, *routes: torch.Tensor) -> torch.Tensor:
    return FORWARD(module, states, *(each[:, :1] for each in routes))


def rolled(wrapper: Any, adapter: str) -> forward.Factors:
    right = FACTORS(wrapper, adapter)
    return forward.Factors(a=(*right.a[1:], right.a[0]), b=right.b, scaling=right.scaling)


def failing(*_: Any, **__: Any) -> torch.Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("module", "name", "wrong", "kinds"),
    [
        (forward, "product", other_expert, 2),
        (forward, "product", without_bias, 1),
        (forward, "experts_forward", one_expert_a_token, 2),
        (peft_layers, "factors", rolled, 2),
        (forward, "product", failing, 2),
    ],
)
def test_experts_that_compute_wrongly_are_errors(
    module: Any, name: str, wrong: Any, kinds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, faults: Any
) -> None:
    monkeypatch.setattr(module, name, wrong)
    plan = Intent(output=tmp_path, cache=tmp_path, scratch=tmp_path, has_experts=True)
    messages = experts.look(Host(), FACTS, plan)
    assert [each.severity for each in messages] == ["error"] * kinds
    assert all("training a small" in each.what and each.remedy for each in messages)
    if wrong is failing:
        row = {"check": "experts", **asdict(messages[0])}
        faults.seen("a kernel that experts need is missing", made="constructed", finding=row, check="experts")


def test_biases_are_not_zero_and_every_expert_has_tokens(tmp_path: Path) -> None:
    """Else a bias that is lost, or an expert, would make no difference."""
    weights = experts.make("gpt_oss", tmp_path, CPU)
    assert all(bool(weight.any()) for name, weight in weights.items() if name.endswith("_bias"))
    model = experts.adapted(tmp_path, ModelConfig(), CPU)
    chosen: list[torch.Tensor] = []
    for _, module in layout.modules(model):
        module.register_forward_pre_hook(lambda _, args: chosen.append(args[1]))
    model(input_ids=experts.inputs("cpu")["ids"])
    assert [set(each.flatten().tolist()) for each in chosen] == [set(range(experts.EXPERTS))] * 2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [({"num_experts": 8}, True), ({"text_config": {"n_routed_experts": 4}}, True), ({"num_local_experts": 0}, False)],
)
def test_a_configured_mixture_is_known_by_its_config(
    shape: dict[str, Any], expected: bool, tmp_path: Path, rows: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shape))
    loaded = load(None, overrides=[], shortcuts={"--model": str(tmp_path), "--data": [str(rows)]})
    assert intent(Host(), loaded.config).has_experts is expected
