"""Which backend: the fast one where it serves the model and all that was asked, else the peft one with the reason.

How processes share the model comes first: FSDP is the fsdp backend's, DeepSpeed the zero backend's.
"""

from __future__ import annotations

from loradock.catalog import optimizers
from loradock.errors import ConfigError
from loradock.plan import obstacles
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision
from loradock.plan.trial import Trial

NAME = "engine"
NAMES = {"peft": "the peft backend", "fsdp": "FSDP", "zero": "DeepSpeed"}


def decide(context: Context) -> Decision[str]:
    """fast wherever it serves. Raises ConfigError where it was asked for and does not."""
    wanted, mode = context.config.engine, context.plan.parallel.value
    if mode == "fsdp":
        return Decision(name=NAME, value="fsdp", why="the model is sharded by FSDP")
    if mode in ("zero2", "zero3"):
        return Decision(name=NAME, value="zero", why=f"train.parallel {mode} is DeepSpeed's")
    if wanted == "peft":
        return asked(NAME, "peft")
    obstacle = obstacles.of_fast(context.config, context.model)
    if obstacle and wanted == "fast":
        raise ConfigError(f"engine fast cannot be used: {obstacle}", hint="--set engine=auto")
    if obstacle:
        return Decision(name=NAME, value="peft", why=f"the fast engine cannot be used: {obstacle}")
    if wanted == "fast":
        return asked(NAME, "fast")
    return Decision(name=NAME, value="fast", why=f"it supports {context.model.architecture} and all settings")


def propose(context: Context) -> tuple[Trial, ...]:
    """The fast engine in place of another, without settings that it does not take; peft in its place only tells."""
    engine = context.plan.engine.value
    if engine == "fast":
        trial = Trial(
            name="engine-peft",
            title="the peft backend instead of the fast one",
            settings=("engine=peft",),
            cause="the fast engine",
            phase="passes",
            is_remedy=False,
        )
        return (trial,)
    train = context.config.train
    freed = {
        "train.optimizer=auto": "fast" not in optimizers.named(train.optimizer).engines,
        "train.compile=off": train.compile != "off",
    }
    return (
        Trial(
            name="engine-fast",
            title=f"the fast engine instead of {NAMES[engine]}",
            settings=("engine=fast", *(setting for setting, is_needed in freed.items() if is_needed)),
            cause=f"{NAMES[engine]}: padding, host time and memory traffic that fused kernels save",
            phase="passes",
        ),
    )
