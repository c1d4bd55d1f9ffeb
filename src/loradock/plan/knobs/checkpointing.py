"""Gradient checkpointing: recompute activations in backward instead of keeping them.

Two decisions: `checkpointing`, whether all layers are recomputed that can be with profit, which is what the TRL engine
knows; and, once the micro-batch is known, `checkpointed_layers`, how many are. The numbers do not depend on either.
"""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan.context import (
    GPU_ROWS,
    Decision,
    Question,
    asked,
)
from loradock.plan.pass_shape import fitted


def decide(question: Question) -> Decision:
    """Off while a useful micro-batch fits without it, because it costs about a third more compute."""
    wanted = question.config.train.checkpointing
    if question.is_fast:
        return _decide_fast(question)
    if wanted != "auto":
        return asked("checkpointing", _all_or_none(question, wanted))
    micro = question.config.train.micro_batch
    rows = micro if micro != "auto" else min(GPU_ROWS, question.useful_rows)
    need = question.expected_bytes(micro_batch=rows, checkpointing=False, optimizer="adamw_fused")["total"]
    have = question.memory_bytes
    why = f"{rows} x {question.row_tokens} tokens without it needs about {need / 2**30:.1f} GiB of {have / 2**30:.1f}"
    return Decision(name="checkpointing", value=need > have, why=why)


def decide_layers(question: Question) -> Decision:
    """As few as fit: each costs a second forward of its own."""
    name, layers = "checkpointed_layers", question.model.layers
    if question.decided["engine"] == "sharded":
        return _decide_sharded(question, name=name)
    if not question.is_fast:
        is_on = question.decided["checkpointing"]
        return Decision(name=name, value=layers if is_on else 0, why="the TRL engine recomputes all layers or none")
    wanted = question.config.train.checkpointing
    if wanted != "auto":
        return asked(name, question.asked_layers(wanted))
    rows = question.decided["micro_batch"]
    tokens = rows * question.row_tokens
    shape = fitted(question.fast_memory, tokens=tokens, limits=question.limits)
    count = shape.checkpointed if shape else layers
    kept = question.fast_memory.kept_by_layer(tokens) / 2**20
    if not count:
        return Decision(name=name, value=0, why=f"all {layers} layers keep {kept:,.0f} MiB each, and it fits")
    why = (
        f"{layers - count} of {layers} layers have room for the {kept:,.0f} MiB that each keeps; a byte here saves most"
    )
    return Decision(name=name, value=count, why=why)


def _decide_fast(question: Question) -> Decision:
    wanted, layers = question.config.train.checkpointing, question.model.layers
    if wanted != "auto":
        return asked("checkpointing", question.asked_layers(wanted) >= layers - 1)
    choice = question.fast_choice()
    count = choice.shape.checkpointed if choice else layers
    again = f"{count} of {layers} layers are computed again, where more memory would spare it"
    if 0 < count < layers - 1:
        again = f"not all layers: {again}"
    why = again if count else f"the activations of all {layers} layers fit: none is computed again"
    return Decision(name="checkpointing", value=count >= layers - 1, why=why)


def _decide_sharded(question: Question, *, name: str) -> Decision:
    """As few as fit, where not all or none were asked for."""
    wanted, layers, decided = question.config.train.checkpointing, question.model.layers, question.decided
    if wanted != "auto":
        return asked(name, question.asked_layers(wanted))
    if not decided["checkpointing"]:
        return Decision(name=name, value=0, why="it fits without")

    def needs(count: int) -> int:
        rows, optimizer = decided["micro_batch"], decided["optimizer"]
        return question.expected_bytes(micro_batch=rows, checkpointing=count, optimizer=optimizer)["total"]

    have = question.memory_bytes
    count = next((count for count in range(layers) if needs(count) <= have), layers)
    why = f"{layers - count} of {layers} layers have room for what they keep: {needs(count) / 2**30:.1f} GiB in all"
    return Decision(name=name, value=count, why=why)


def _all_or_none(question: Question, wanted: bool | int) -> bool:
    count = question.asked_layers(wanted)
    if question.decided["engine"] == "sharded":
        return count > 0
    if 0 < count < question.model.layers:
        raise ConfigError(
            f"train.checkpointing is {count}, and the TRL engine recomputes all layers or none",
            hint="--set train.checkpointing=true, or false",
        )
    return bool(count)
