"""Which training loop: the fast engine where it serves the model and all that was asked, else TRL with the reason.

How processes share the model comes first: FSDP is the sharded engine's, DeepSpeed TRL's.
"""

from __future__ import annotations

from loradock.errors import ConfigError
from loradock.plan import obstacles
from loradock.plan.context import Decision, Question, asked

NAME = "engine"


def decide(question: Question) -> Decision:
    """fast wherever it serves. Raises ConfigError where it was asked for and does not."""
    wanted, mode = question.config.engine, question.decided["parallel"]
    if mode == "fsdp":
        return Decision(name=NAME, value="sharded", why="it trains a model that FSDP cuts up")
    if wanted == "trl":
        return asked(NAME, "trl")
    if mode in ("zero2", "zero3"):
        return Decision(name=NAME, value="trl", why=f"it trains with DeepSpeed, and train.parallel is {mode}")
    obstacle = obstacles.of_fast(question.config, question.model)
    if obstacle and wanted == "fast":
        raise ConfigError(f"engine fast cannot be used: {obstacle}", hint="--set engine=auto")
    if obstacle:
        return Decision(name=NAME, value="trl", why=f"the fast engine cannot be used: {obstacle}")
    if wanted == "fast":
        return asked(NAME, "fast")
    return Decision(name=NAME, value="fast", why=f"it serves {question.model.architecture} and all that was asked")
