"""Which elementwise kernels a run gets, and that a wish that cannot be is refused before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from facts.recorded import config, decision, machine, planned

from loradock.errors import ConfigError
from loradock.plan.context import Decision


def kernels(card: str | None, **asked: Any) -> Decision:
    return decision(planned(facts=machine(card), config=config(**asked)), "kernels")


@pytest.mark.parametrize(
    ("card", "wanted", "value", "why"),
    [
        ("a10", "auto", "triton", "fused for the card"),
        ("a10", "torch", "torch", "asked for"),
        ("a10", "triton", "triton", "asked for"),
        (None, "auto", "torch", "Triton needs a card"),
        (None, "torch", "torch", "asked for"),
    ],
)
def test_a_card_gets_triton_and_a_cpu_plain_torch_unless_asked_otherwise(
    card: str | None, wanted: str, value: str, why: str
) -> None:
    found = kernels(card, model={"kernels": wanted})
    assert (found.value, found.why) == (value, why)


@pytest.mark.parametrize(("card", "device"), [(None, "auto"), ("a10", "cpu")])
def test_triton_without_a_card_is_refused_by_the_plan_with_what_to_type(card: str | None, device: str) -> None:
    with pytest.raises(ConfigError, match="triton, which needs a card, and the device is cpu") as refused:
        kernels(card, device=device, model={"kernels": "triton"})
    assert refused.value.hint == "--set model.kernels=auto"


@pytest.mark.parametrize("card", ["a10", None])
def test_the_trl_engine_has_none_of_them_and_says_so_where_they_were_asked_for(card: str | None) -> None:
    default = kernels(card, engine="peft")
    assert (default.value, "no effect" in default.why) == ("none", False)
    asked = kernels(card, engine="peft", model={"kernels": "triton"})
    assert asked.value == "none"
    assert "model.kernels=triton has no effect" in asked.why
