"""Whether the log-probabilities of the reference, which does not change, are kept for later epochs."""

from __future__ import annotations

from loradock.facts import DataFacts
from loradock.plan.context import Context, asked
from loradock.plan.knobs.steps import per_epoch
from loradock.plan.plan import NOT_APPLICABLE, Decision

NAME, KEY = "reference", "preference.keep_reference"
KEPT, AS_IT_COMES = "kept", "as it comes"
VALUE_BYTES = 5
"""Of each answer in a checkpoint: its value, and whether it is known."""


def decide(context: Context) -> Decision[str]:
    """Kept where answers come a second time."""
    config = context.config
    if not has_reference(context):
        what = f"objective {config.objective} compares with no model as it was"
        return Decision(name=NAME, value=AS_IT_COMES, why=NOT_APPLICABLE + what)
    if not config.preference.keep_reference:
        return asked(NAME, AS_IT_COMES)
    if config.data.repeat_first:
        return Decision(name=NAME, value=AS_IT_COMES, why="data.repeat_first measures a step as the first epoch has it")
    if repeated_share(context) == 0:
        return Decision(name=NAME, value=AS_IT_COMES, why="the steps take no more answers than there are")
    size = kept_bytes(context.data)
    why = f"each answer's log-probability is computed in its first epoch, and lies in the checkpoints ({size:,} bytes)"
    if not is_every_pass(context):
        why += "; those of mismatched answers are computed each time, since every epoch mixes others"
    return Decision(name=NAME, value=KEPT, why=why)


def kept_bytes(data: DataFacts) -> int:
    """What is kept takes in each checkpoint."""
    return data.train_rows * VALUE_BYTES


def has_reference(context: Context) -> bool:
    """Whether the objective holds answers against the model as it was."""
    return context.config.objective_spec.owns(KEY) and context.config.plain_passes > 0


def is_every_pass(context: Context) -> bool:
    """Whether no pass without gradient is left once the reference is known."""
    return context.config.plain_passes == 1


def repeated_share(context: Context) -> float:
    """The share of the answers that the run's steps see which came before; a source's weight counts, too."""
    seen = context.data.samples_per_epoch * context.plan.steps.value / per_epoch(context)
    return max(0.0, 1 - context.data.train_rows / seen)


def plain_passes(context: Context) -> float:
    """How often a step's samples are run forward besides, without a gradient: the mean over the run's steps."""
    saved = repeated_share(context) if context.plan.reference.value == KEPT else 0.0
    return context.config.plain_passes - saved
