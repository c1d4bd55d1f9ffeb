"""Whether the log-probabilities of the reference are kept: only where answers come twice, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from facts.recorded import config, data, machine, models

from loradock.plan import planner
from loradock.plan.audit.prediction import predicted
from loradock.plan.changed import changed_config
from loradock.plan.context import Context
from loradock.plan.knobs import reference
from loradock.plan.planner import context_of


def of(*, epochs: float, loss: Any = "dpo", **more: Any) -> Context:
    asked = {"train": {"epochs": epochs}, "preference": {"loss": loss, **more}}
    wanted, facts = changed_config(config(objective="preference", **asked), ()), machine("a10")
    return context_of(planner.make(wanted, facts=facts, model=models()["mistral-7b"], data=data()), wanted, facts=facts)


@pytest.mark.parametrize(
    ("asked", "value", "why"),
    [
        ({"epochs": 1}, "as it comes", "the steps take no more answers than there are"),
        ({"epochs": 2}, "kept", "each answer's log-probability is computed in its first epoch"),
        ({"epochs": 2, "keep_reference": False}, "as it comes", "set in the configuration"),
        ({"epochs": 2, "loss": "simpo"}, "as it comes", "not applicable: "),
        ({"epochs": 2, "loss": {"dpo": 1.0, "ipo": 0.5}}, "kept", "each answer's"),
        ({"epochs": 2, "loss": "kto"}, "kept", "those of mismatched answers are computed each time"),
    ],
)
def test_the_reference_is_kept_where_answers_come_twice(asked: dict[str, Any], value: str, why: str) -> None:
    decision = of(**asked).plan.reference
    assert decision.value == value
    assert why in decision.why
    assert decision.is_shown == ("not applicable" not in why)


def test_passes_that_are_left_out_are_not_expected_to_take_time() -> None:
    assert reference.plain_passes(of(epochs=1)) == 1
    assert reference.plain_passes(of(epochs=4)) == 0.25
    assert reference.plain_passes(of(epochs=4, keep_reference=False)) == 1
    assert reference.plain_passes(of(epochs=4, loss="kto")) == 2.25
    assert predicted(of(epochs=4)).passes < predicted(of(epochs=4, keep_reference=False)).passes
