"""torch.compile of the TRL engine's layers."""

from __future__ import annotations

from loradock.plan.trials.base import Baseline, Trial

OFF = "off"


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """On where it is off, and the other way; the fast engine has nothing to compile."""
    config = baseline.config
    if baseline.plan.value("engine") != "trl":
        return ()
    is_off = config.train.compile == OFF
    held = ("engine=trl",) if config.engine == "auto" else ()
    wanted = "default" if is_off else OFF
    return (
        Trial(
            name=f"compile-{wanted}",
            title="decoder layers compiled" if is_off else f"eager layers instead of {config.train.compile}",
            settings=(f"train.compile={wanted}", *held),
            cause="layers run operator by operator" if is_off else "compiling, and what it makes",
            phase="passes",
            price="the first step waits a minute or more for the compiler" if is_off else "",
            stability_risk="moderate" if is_off else "none",
            effort="a short run first" if is_off else "one setting",
        ),
    )
