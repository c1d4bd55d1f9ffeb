"""Dense copies of NF4 weights in the fast engine: of all layers, and of none."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """The counts of layers that the plan did not take."""
    plan = baseline.plan
    if plan.value("engine") != "fast" or baseline.config.model.quantization != "nf4":
        return ()
    layers, now = plan.model.layers, plan.value("cached_layers")
    wanted = {"all": layers, "none": 0}
    return tuple(
        Trial(
            name=f"weight-cache-{name}",
            title=f"dense weights of {count} of {layers} layers kept instead of {now}",
            settings=(f"model.cache_weights={count}",),
            cause="weights are dequantised for every product"
            if count
            else "dense weights take memory from activations",
            phase="passes",
            stability_risk="low" if count else "none",
        )
        for name, count in wanted.items()
        if count != now
    )
