"""The attention kernel: the other ones that this machine has."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """flash-attn where it is installed, and SDPA where the model has it. Eager is never faster, and is left out."""
    now = baseline.plan.value("attention")
    others = {
        "flash_attention_2": "flash-attn" in baseline.facts.packages,
        "sdpa": baseline.plan.model.has_sdpa,
    }
    return tuple(
        Trial(
            name=f"attention-{kernel.removesuffix('_attention_2')}",
            title=f"attention {kernel} instead of {now}",
            settings=(f"model.attention={kernel}",),
            cause=f"the attention kernel {now}",
            phase="passes",
            stability_risk="low",
        )
        for kernel, is_there in others.items()
        if is_there and kernel != now
    )
