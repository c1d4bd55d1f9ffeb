"""Which backend: the fast one where it serves the model and all that was asked, else the peft one with the reason.

How processes share the model comes first: FSDP is the fsdp backend's, DeepSpeed the zero backend's.
"""

from __future__ import annotations

from loradock.catalog import engines
from loradock.errors import ConfigError
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision
from loradock.plan.trial import Trial

NAME = "engine"


def decide(context: Context) -> Decision[str]:
    """fast wherever it serves. Raises ConfigError where it was asked for and does not."""
    setting, mode = context.config.engine, context.plan.parallel.value
    preferred, *alternatives = engines.serving(mode)
    if not alternatives:
        return Decision(name=NAME, value=preferred.name, why=preferred.reason.format(mode=mode))
    if setting != "auto":
        if obstacle := context.obstacle(engines.of(setting).cannot):
            raise ConfigError(f"engine {setting} cannot be used: {obstacle}", hint="--set engine=auto")
        return asked(NAME, setting)
    if obstacle := context.obstacle(preferred.cannot):
        return Decision(name=NAME, value=alternatives[0].name, why=f"{preferred.title} cannot be used: {obstacle}")
    return Decision(name=NAME, value=preferred.name, why=f"it supports {context.model.architecture} and all settings")


def propose(context: Context) -> tuple[Trial, ...]:
    """The fast engine in place of another, without settings that it does not take; peft in its place only tells."""
    engine, fast = context.engine, engines.PREFERRED
    if engine.fallback:
        trial = Trial(
            name=f"engine-{engine.fallback}",
            title=f"{engines.of(engine.fallback).title} instead of the {engine.name} one",
            settings=(f"engine={engine.fallback}",),
            cause=engine.title,
            phase="passes",
            is_remedy=False,
        )
        return (trial,)
    train = context.config.train
    freed = {
        "train.optimizer=auto": train.optimizer not in ("auto", *fast.optimizers),
        "train.compile=off": train.compile != "off",
    }
    return (
        Trial(
            name=f"engine-{fast.name}",
            title=f"{fast.title} instead of {engine.title}",
            settings=(f"engine={fast.name}", *(setting for setting, is_needed in freed.items() if is_needed)),
            cause=f"{engine.title}: padding, host time and memory traffic that fused kernels save",
            phase="passes",
        ),
    )
