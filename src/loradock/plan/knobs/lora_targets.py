"""Adapters on the attention projections alone."""

from __future__ import annotations

from loradock.plan.context import Context
from loradock.plan.trial import Trial

ATTENTION = "attn"
"""In the dotted names of a layer's attention in every family that is known here (self_attn, attn)."""


def propose(context: Context) -> tuple[Trial, ...]:
    """Where the MLP has adapters now, and the model names its attention as most do."""
    targets = context.model.targets
    attention = [name for name in targets if f"{ATTENTION}." in name]
    endings = list(dict.fromkeys(name.rsplit(".", 1)[-1] for name in attention))
    reached = [name for name in targets if name.rsplit(".", 1)[-1] in endings]
    if not attention or len(reached) == len(targets):
        return ()
    return (
        Trial(
            name="lora-targets-attention",
            title=f"adapters on {', '.join(endings)} alone: {len(reached)} layers instead of {len(targets)}",
            settings=(f"lora.targets=[{', '.join(endings)}]",),
            cause="adapters on the MLP's layers",
            phase="passes",
            price="the MLP is not adapted",
            accuracy_risk="moderate",
        ),
    )
