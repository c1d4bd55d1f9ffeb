"""The verdict names what costs most, with its figures, and invents nothing where a run is healthy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loradock.analysis.profile import roles
from loradock.analysis.profile.verdict import Evidence, judge

HEALTHY = Evidence(
    device="cpu",
    phases={"data": 0.001, "passes": 0.09, "optimizer": 0.004, "other": 0.001, "logging": 0.0005, "evaluation": 0.002,
            "saving": 0.0015},
    cadence={"log": 10, "evaluate": 50, "save": 100},
    padding_share=0.0,
    busy_share=None,
    small_share=0.1,
    pass_tokens=2000.0,
    passes=2,
    training_share=0.95,
    preparing_share=0.01,
    preparing_seconds=1.0,
    operations=900.0,
    role_shares={roles.GEMM: 0.06, roles.HEAD: 0.01, roles.ELEMENTWISE: 0.02},
    flops=4e10,
    bytes=2e9,
    peak_flops=1e11,
    peak_bytes=1e10,
    source="measured here",
)  # fmt: skip


def phases(**seconds: float) -> Evidence:
    return replace(HEALTHY, phases={**HEALTHY.phases, **seconds})


def test_a_healthy_run_has_no_bottleneck_and_its_figures_are_told() -> None:
    verdict = judge(HEALTHY)
    assert not verdict.is_bottleneck
    assert verdict.remedy is None
    assert verdict.sentence == (
        "no bottleneck found: compute-bound; products, attention and the loss take 78 % of the computing, "
        "at 40 GFLOP/s, 40 % of 100 GFLOP/s (measured here)"
    )


def test_the_seed_of_idle_83_percent_is_found() -> None:
    seed = dict.fromkeys(HEALTHY.phases, 0.0) | {"passes": 0.05, "data": 0.24}
    verdict = judge(replace(HEALTHY, phases=seed, device="cuda", busy_share=0.17, small_share=None))
    assert verdict.sentence == ("data-bound: the device is idle 83 % of each step, waiting for data (240 ms of 290 ms)")
    assert "train.workers" in str(verdict.remedy)


@pytest.mark.parametrize(
    ("evidence", "kind", "words"),
    [
        (phases(optimizer=0.1), "optimiser-bound", "the optimiser's update takes 51 % of each step"),
        (phases(logging=0.1), "logging-bound", "writing metric lines every 10 steps takes 50 %"),
        (phases(evaluation=0.1), "evaluation-bound", "evaluating every 50 steps takes 51 %"),
        (phases(saving=0.1), "checkpoint-bound", "saving every 100 steps takes 50 %"),
        (replace(HEALTHY, padding_share=0.6), "padding-bound", "60 % of what the passes compute is padding"),
        (replace(HEALTHY, small_share=0.7, passes=16, pass_tokens=21.0), "host-bound", "16 passes of 21 tokens"),
        (replace(HEALTHY, busy_share=0.5, small_share=None), "host-bound", "the GPU is idle 44 % of each step"),
        (replace(HEALTHY, preparing_share=0.4, training_share=0.5), "data-bound", "40 % of the whole run"),
    ],
)
def test_each_cause_has_its_own_words(evidence: Evidence, kind: str, words: str) -> None:
    verdict = judge(evidence)
    assert (verdict.kind, verdict.is_bottleneck) == (kind, True)
    assert verdict.sentence.startswith(f"{kind}: ")
    assert words in verdict.sentence
    assert verdict.remedy


def test_of_two_causes_the_dearer_is_named_and_the_other_told() -> None:
    verdict = judge(phases(data=0.2, saving=0.1))
    assert verdict.kind == "data-bound"
    assert [each.split(":")[0] for each in verdict.also] == ["checkpoint-bound"]


def test_memory_traffic_is_told_from_arithmetic() -> None:
    verdict = judge(replace(HEALTHY, role_shares={roles.GEMM: 0.02, roles.DEQUANTISE: 0.06, roles.ELEMENTWISE: 0.02}))
    assert verdict.kind == "bandwidth-bound"
    assert "dequantising 60 %" in verdict.sentence
    assert "2 GB/s, 20 % of 10 GB/s" in verdict.sentence


@pytest.mark.parametrize("share", [0.0, 0.1, 0.29])
def test_one_large_pass_or_little_to_spare_is_no_small_micro_batch(share: float) -> None:
    assert not judge(replace(HEALTHY, small_share=share)).is_bottleneck
    assert not judge(replace(HEALTHY, small_share=0.9, passes=1)).is_bottleneck
