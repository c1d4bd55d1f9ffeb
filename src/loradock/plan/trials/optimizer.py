"""The optimiser of the TRL engine; the fast engine has one."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Risk, Trial

FUSED = "adamw_fused"


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """Fused AdamW where it is another; else plain and paged 8-bit AdamW, which show how much there is to gain."""
    plan = baseline.plan
    now = plan.value("optimizer")
    if plan.value("engine") != "trl":
        return ()
    if now != FUSED:
        return (_trial(baseline, FUSED, cause=f"the optimiser {now}"),)
    plain = _trial(baseline, "adamw", cause="the fused optimiser", is_remedy=False)
    paged = _trial(
        baseline, "paged_adamw_8bit", cause="the optimiser's memory", price="moments in 8 bits", accuracy_risk="low"
    )
    return (plain, paged) if plan.value("device") == "cuda" else (plain,)


def _trial(
    baseline: Baseline,
    wanted: str,
    *,
    cause: str,
    price: str = "",
    is_remedy: bool = True,
    accuracy_risk: Risk = "none",
) -> Trial:
    now = baseline.plan.value("optimizer")
    held = ("engine=trl",) if baseline.config.engine == "auto" else ()
    return Trial(
        name=f"optimizer-{wanted.replace('_', '-')}",
        title=f"optimiser {wanted} instead of {now}",
        settings=(f"train.optimizer={wanted}", *held),
        cause=cause,
        phase="optimizer",
        price=price,
        is_remedy=is_remedy,
        accuracy_risk=accuracy_risk,
    )
