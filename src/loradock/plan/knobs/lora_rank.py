"""The rank of the adapters, halved."""

from __future__ import annotations

from loradock.plan.context import Context
from loradock.plan.trial import Trial


def propose(context: Context) -> tuple[Trial, ...]:
    """Half, where there is a half. Alpha is halved too, so that the adapters keep their scale."""
    lora = context.config.lora
    if lora.rank < 2:
        return ()
    half = lora.rank // 2
    return (
        Trial(
            name="lora-rank-x0.5",
            title=f"LoRA rank {half} instead of {lora.rank}",
            settings=(f"lora.rank={half}", f"lora.alpha={lora.alpha * half / lora.rank:g}"),
            cause=f"adapters of rank {lora.rank}",
            phase="passes",
            price="half the trainable weights",
            accuracy_risk="moderate",
        ),
    )
