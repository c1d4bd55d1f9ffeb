"""The other training loop."""

from __future__ import annotations

from loradock.plan.obstacles import FAST_OPTIMIZERS
from loradock.plan.trials.base import Baseline, Trial

ENGINES = {"trl": "the TRL engine", "sharded": "the sharded engine"}


def propose(baseline: Baseline) -> tuple[Trial, ...]:
    """The fast engine in place of TRL, with the settings that it does not take; TRL in its place only tells."""
    engine = baseline.plan.value("engine")
    if engine == "fast":
        trial = Trial(
            name="engine-trl",
            title="the TRL engine instead of the fast one",
            settings=("engine=trl",),
            cause="the fast engine",
            phase="passes",
            is_remedy=False,
        )
        return (trial,)
    train = baseline.config.train
    freed = {
        "train.optimizer=auto": train.optimizer not in FAST_OPTIMIZERS,
        "train.compile=off": train.compile != "off",
    }
    return (
        Trial(
            name="engine-fast",
            title=f"the fast engine instead of {ENGINES[engine]}",
            settings=("engine=fast", *(setting for setting, is_needed in freed.items() if is_needed)),
            cause=f"{ENGINES[engine]}: padding, host time and traffic that fused kernels spare",
            phase="passes",
        ),
    )
