"""How many layers recompute their activations in backward: as few as fit, for each costs a second forward."""

from __future__ import annotations

from loradock.plan.context import Context, asked
from loradock.plan.pass_shape import fitted
from loradock.plan.plan import Decision
from loradock.plan.trial import Trial

NAME = "checkpointed_layers"
LESS = "layers are recomputed in the backward pass"
MORE = "activations fill the memory, which keeps micro-batches small"


def decide(context: Context) -> Decision[int]:
    """As few as fit: each costs a second forward of its own."""
    layers = context.model.layers
    if not context.engine.recomputes_any_count:
        is_on = context.plan.checkpointing.value
        return Decision(name=NAME, value=layers if is_on else 0, why="the peft backend recomputes all layers or none")
    if not context.engine.plans_shapes:
        return _decide_sharded(context)
    setting = context.config.train.checkpointing
    if setting != "auto":
        return asked(NAME, context.asked_layers(setting))
    rows = context.plan.micro_batch.value
    tokens = rows * context.row_tokens
    shape = fitted(context.fast_memory, tokens=tokens, limits=context.limits)
    count = shape.checkpointed if shape else layers
    kept_mib = context.fast_memory.kept_by_layer(tokens) / 2**20
    if not count:
        return Decision(name=NAME, value=0, why=f"all {layers} layers keep {kept_mib:,.0f} MiB each, and it fits")
    why = (
        f"{layers - count} of {layers} layers keep their {kept_mib:,.0f} MiB of activations each; the best "
        "use of the memory"
    )
    return Decision(name=NAME, value=count, why=why)


def _decide_sharded(context: Context) -> Decision[int]:
    """As few as fit, where not all or none were asked for."""
    setting, layers = context.config.train.checkpointing, context.model.layers
    if setting != "auto":
        return asked(NAME, context.asked_layers(setting))
    if not context.plan.checkpointing.value:
        return Decision(name=NAME, value=0, why="it fits without")

    def needs(count: int) -> int:
        rows, optimizer = context.plan.micro_batch.value, context.plan.optimizer.value
        return context.expected_bytes(micro_batch=rows, checkpointing=count, optimizer=optimizer)["total"]

    have = context.memory_bytes
    count = next((count for count in range(layers) if needs(count) <= have), layers)
    why = f"{layers - count} of {layers} layers keep their activations: {needs(count) / 2**30:.1f} GiB in all"
    return Decision(name=NAME, value=count, why=why)


def propose(context: Context) -> tuple[Trial, ...]:
    """Every other count of layers; only the fast engine knows half."""
    plan = context.plan
    layers, current = plan.model.layers, plan.checkpointed_layers.value
    choices = {0: ("off", "false"), layers: ("on", "true")}
    if context.engine.plans_shapes:
        choices = {0: choices[0], layers // 2: ("half", str(layers // 2)), layers: choices[layers]}
    trials = [
        Trial(
            name=f"checkpointing-{name}",
            title=f"{count} of {layers} layers recomputed instead of {current}",
            settings=(f"train.checkpointing={value}",),
            cause=LESS if count < current else MORE,
            phase="passes",
            stability_risk="low" if count < current else "none",
        )
        for count, (name, value) in choices.items()
        if count != current
    ]
    is_asked = context.config.train.checkpointing != "auto"
    return (*([_planned(layers, current)] if is_asked else []), *trials)


def _planned(layers: int, current: int) -> Trial:
    return Trial(
        name="checkpointing-auto",
        title=f"as many of {layers} layers recomputed, as memory requires, instead of {current}",
        settings=("train.checkpointing=auto",),
        cause=LESS if current else MORE,
        phase="passes",
    )
