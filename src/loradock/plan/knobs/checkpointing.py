"""Gradient checkpointing: recompute activations in backward instead of keeping them.

Whether all layers are recomputed that can be with profit, which is what the peft backend knows; `checkpointed_layers`
says how many are, once the micro-batch is known. The numbers do not depend on either.
"""

from __future__ import annotations

from loradock.catalog import optimizers
from loradock.errors import ConfigError
from loradock.plan.context import Context, asked
from loradock.plan.plan import Decision

GPU_ROWS = 8


def decide(context: Context) -> Decision[bool]:
    """Off while a useful micro-batch fits without it, because it costs about a third more compute."""
    setting = context.config.train.checkpointing
    if context.engine.plans_shapes:
        return _decide_fast(context)
    if setting != "auto":
        return asked("checkpointing", _all_or_none(context, setting))
    micro = context.config.train.micro_batch
    rows = micro if micro != "auto" else min(GPU_ROWS, context.useful_rows)
    need = context.expected_bytes(micro_batch=rows, checkpointing=False, optimizer=optimizers.DEFAULT.name)["total"]
    have = context.memory_bytes
    why = f"{rows} x {context.row_tokens} tokens without it needs about {need / 2**30:.1f} GiB of {have / 2**30:.1f}"
    return Decision(name="checkpointing", value=need > have, why=why)


def _decide_fast(context: Context) -> Decision[bool]:
    setting, layers = context.config.train.checkpointing, context.model.layers
    if setting != "auto":
        return asked("checkpointing", context.asked_layers(setting) >= layers - 1)
    choice = context.fast_choice()
    count = choice.shape.checkpointed if choice else layers
    why = f"the activations of all {layers} layers fit: no layer is recomputed"
    if count:
        why = f"gradient checkpointing on {count} of {layers} layers; more memory would need fewer"
    return Decision(name="checkpointing", value=count >= layers - 1, why=why)


def _all_or_none(context: Context, setting: bool | int) -> bool:
    count = context.asked_layers(setting)
    if context.engine.recomputes_any_count:
        return count > 0
    if 0 < count < context.model.layers:
        raise ConfigError(
            f"train.checkpointing is {count}, and the peft backend recomputes all layers or none",
            hint="--set train.checkpointing=true, or false",
        )
    return bool(count)
