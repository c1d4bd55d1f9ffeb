"""What is advised for a run of seconds, in which checkpoints and evaluations cost more than steps."""

from __future__ import annotations

import pytest
from facts.recorded import config, data, machine, models

from loradock.plan.audit import Audit, audit
from loradock.plan.audit.findings import CRITICAL_SECONDS, MODERATE_SECONDS


def audited(*, gpu: str | None, rows: int, **asked: dict[str, object]) -> Audit:
    return audit(config(**asked), machine(gpu), models()["tinyllama-1.1b"], data(rows=rows, held_out=rows // 8))


@pytest.mark.thin(6)
@pytest.mark.parametrize("gpu", ["a10", "h200", "rtx-2080-ti"])
@pytest.mark.parametrize(
    "asked", [{}, {"lora": {"rank": 64}}, {"checkpoints": {"every": 1}, "evaluation": {"every": 1}}]
)
@pytest.mark.parametrize("steps", [1, 6, 30])
def test_a_run_of_seconds_has_nothing_critical_and_no_advice_that_touches_accuracy_for_a_cadence(
    gpu: str, asked: dict[str, dict[str, object]], steps: int
) -> None:
    found = audited(gpu=gpu, rows=64, **{**asked, "train": {"max_steps": steps, "global_batch": 8}})
    assert found.finish.seconds < CRITICAL_SECONDS
    for each in found.findings:
        assert each.severity != "critical", each.trial.name
        assert each.severity == "low" or each.saved_seconds >= MODERATE_SECONDS
        assert each.trial.accuracy_risk == "none" or "checkpoint.md" not in each.gain.source, each
    advised = {each.trial.name for each in found.findings if each.gain.expected > 1.5}
    assert all(each.trial.phase in ("evaluation", "saving") for each in found.findings if each.trial.name in advised)


def test_a_long_run_with_the_same_fault_has_it_as_critical() -> None:
    asked: dict[str, dict[str, object]] = {
        "train": {"max_steps": 20_000, "global_batch": 8},
        "checkpoints": {"every": 1},
        "lora": {"rank": 64},
    }
    found = audited(gpu="h200", rows=100_000, **asked)
    (often,) = [each for each in found.findings if each.trial.name == "checkpoints-x10"]
    assert often.severity == "critical"


def test_a_cpu_keeps_no_dense_weights_and_is_not_advised_to() -> None:
    found = audited(gpu=None, rows=1000)
    decision = found.baseline.plan.cached_layers
    assert decision.value == 0
    assert "bench/results/weight_cache" in decision.why
    assert not [each for each in found.findings if each.trial.name == "weight-cache-all"]
