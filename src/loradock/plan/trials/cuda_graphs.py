"""Micro-steps replayed from CUDA graphs, so that the card does not wait for the host."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """The other way than now, with the fast engine on a card."""
    plan = baseline.plan
    if plan.value("engine") != "fast" or plan.value("device") != "cuda":
        return ()
    is_on = plan.value("cuda_graphs")
    return (
        Trial(
            name="cuda-graphs-off" if is_on else "cuda-graphs-on",
            title="kernels launched one by one" if is_on else "micro-steps replayed from CUDA graphs",
            settings=(f"train.cuda_graphs={'false' if is_on else 'true'}",),
            cause="recording graphs" if is_on else "the card waits for the host to launch kernels",
            phase="passes",
            stability_risk="none" if is_on else "moderate",
            effort="one setting" if is_on else "a short run first",
        ),
    )
