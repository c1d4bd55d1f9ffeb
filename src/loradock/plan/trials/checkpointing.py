"""Gradient checkpointing: as planned where a person chose, off, of half the layers, of all."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial

LESS = "layers are computed a second time in backward"
MORE = "memory is full of activations, which keeps passes small"


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """Every other count of layers; only the fast engine knows half."""
    plan = baseline.plan
    layers, now = plan.model.layers, plan.value("checkpointed_layers")
    wanted = {0: ("off", "false"), layers: ("on", "true")}
    if plan.value("engine") == "fast":
        wanted = {0: wanted[0], layers // 2: ("half", str(layers // 2)), layers: wanted[layers]}
    trials = [
        Trial(
            name=f"checkpointing-{name}",
            title=f"{count} of {layers} layers computed again instead of {now}",
            settings=(f"train.checkpointing={value}",),
            cause=LESS if count < now else MORE,
            phase="passes",
            stability_risk="low" if count < now else "none",
        )
        for count, (name, value) in wanted.items()
        if count != now
    ]
    is_asked = baseline.config.train.checkpointing != "auto"
    return (*([_planned(layers, now)] if is_asked else []), *trials)


def _planned(layers: int, now: int) -> Trial:
    return Trial(
        name="checkpointing-auto",
        title=f"as many of {layers} layers computed again as memory demands, instead of {now}",
        settings=("train.checkpointing=auto",),
        cause=LESS if now else MORE,
        phase="passes",
    )
