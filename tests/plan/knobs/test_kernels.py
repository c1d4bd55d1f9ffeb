"""Which elementwise kernels a run gets, and that a wish that cannot be is refused before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from facts.recorded import config, decision, machine, planned

from loradock.errors import ConfigError
from loradock.plan.context import Decision


def kernels(gpu: str | None, **asked: Any) -> Decision:
    return decision(planned(facts=machine(gpu), config=config(**asked)), "kernels")


@pytest.mark.parametrize(
    ("gpu", "wanted", "value", "why"),
    [
        ("a10", "auto", "triton", "fused for the GPU"),
        ("a10", "torch", "torch", "set in the configuration"),
        ("a10", "triton", "triton", "set in the configuration"),
        (None, "auto", "torch", "Triton needs a GPU"),
        (None, "torch", "torch", "set in the configuration"),
    ],
)
def test_a_gpu_gets_triton_and_a_cpu_plain_torch_unless_asked_otherwise(
    gpu: str | None, wanted: str, value: str, why: str
) -> None:
    found = kernels(gpu, model={"kernels": wanted})
    assert (found.value, found.why) == (value, why)


@pytest.mark.parametrize(("gpu", "device"), [(None, "auto"), ("a10", "cpu")])
def test_triton_without_a_gpu_is_refused_by_the_plan_with_what_to_type(gpu: str | None, device: str) -> None:
    with pytest.raises(ConfigError, match="triton, which needs a GPU, and the device is cpu") as refused:
        kernels(gpu, device=device, model={"kernels": "triton"})
    assert refused.value.hint == "--set model.kernels=auto"


@pytest.mark.parametrize("gpu", ["a10", None])
def test_the_trl_engine_has_none_of_them_and_says_so_where_they_were_asked_for(gpu: str | None) -> None:
    default = kernels(gpu, engine="peft")
    assert (default.value, "no effect" in default.why) == ("none", False)
    asked = kernels(gpu, engine="peft", model={"kernels": "triton"})
    assert asked.value == "none"
    assert "model.kernels=triton has no effect" in asked.why
